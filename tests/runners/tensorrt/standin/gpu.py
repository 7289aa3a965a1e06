"""GPUs that are not there, for torch to see: the real engine does not start without one."""

import os
from types import SimpleNamespace

import torch

COUNT = int(os.environ.get("WATTDOCK_STANDIN_GPUS", "1"))


def properties(index):
    """Return what torch says of a GPU."""
    if not 0 <= int(index) < COUNT:
        raise RuntimeError("invalid device ordinal")
    return SimpleNamespace(
        uuid=f"5a0d1000-0000-0000-0000-00000000000{index}",
        name="Stand-in GPU",
        total_memory=80_000_000_000,
        major=9,
        minor=0,
    )


torch.cuda.is_available = lambda: COUNT > 0
torch.cuda.device_count = lambda: COUNT
torch.cuda.get_device_properties = properties
torch.cuda.get_device_capability = lambda index: (9, 0)
torch.cuda.nccl.version = lambda: (2, 0, 0)
