"""GPUs that are not there, for torch to see: the real engine does not start without one."""

import os
from pathlib import Path
from types import SimpleNamespace

import torch

# What a test writes there is what goes wrong.
FAULT = Path(__file__).parents[1] / "fault"


def count():
    """Return the number of GPUs."""
    return 0 if FAULT.exists() and FAULT.read_text() == "no GPU" else int(os.environ.get("WATTDOCK_STANDIN_GPUS", "1"))


def properties(index):
    """Return what torch says of a GPU."""
    if not 0 <= int(index) < count():
        raise RuntimeError("invalid device ordinal")
    return SimpleNamespace(
        uuid=f"5a0d1000-0000-0000-0000-00000000000{index}",
        name="Stand-in GPU",
        total_memory=80_000_000_000,
        major=9,
        minor=0,
    )


torch.cuda.is_available = lambda: count() > 0
torch.cuda.device_count = count
torch.cuda.get_device_properties = properties
torch.cuda.get_device_capability = lambda index: (9, 0)
torch.cuda.nccl.version = lambda: (2, 0, 0)
