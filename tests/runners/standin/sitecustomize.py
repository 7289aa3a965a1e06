"""GPUs that are not there, for torch to see once a process imports it: engines that cannot be had do not start without.

Python imports this module at its start, wherever it lies on the path.
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

# What a test writes there is what goes wrong.
FAULT = Path(__file__).with_name("fault")


def visible():
    """Return the indices of the GPUs that this process may see."""
    if FAULT.exists() and FAULT.read_text() == "no GPU":
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else list(map(str, range(int(os.environ.get("WATTDOCK_STANDIN_GPUS", "1")))))


def properties(index):
    """Return what torch says of a GPU."""
    if not 0 <= int(index) < len(visible()):
        raise RuntimeError("invalid device ordinal")
    return SimpleNamespace(
        uuid=f"5a0d1000-0000-0000-0000-00000000000{visible()[int(index)]}",
        name="Stand-in GPU",
        total_memory=80_000_000_000,
        major=9,
        minor=0,
    )


def pretend(cuda):
    """Let torch see them."""
    cuda.is_available = lambda: bool(visible())
    cuda.device_count = lambda: len(visible())
    cuda.get_device_properties = properties
    cuda.get_device_capability = lambda index: (9, 0)
    cuda.nccl.version = lambda: (2, 0, 0)


class AfterTorch:
    """Finds torch as it is, and changes it once it has been imported."""

    def find_spec(self, name, path=None, target=None):
        """Return nothing of any other module."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def then(module):
            run(module)
            pretend(module.cuda)

        spec.loader.exec_module = then
        return spec


sys.meta_path.insert(0, AfterTorch())
