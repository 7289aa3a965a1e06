"""Leave nothing of a split model's shared memory behind in workers that are killed.

On a CPU vLLM's workers compute together through segments of their own (`…-cpushm_N`), of 2 MiB for each thread, which
only a worker that ends by itself unlinks; Python's resource tracker, which sees to vLLM's queues, has not heard of
them. Memory that several processes have mapped needs no name any more, so it goes as soon as all have it.
"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

SEGMENTS = Path("/dev/shm")  # where shm_open(3) puts them


def unlink_once_shared() -> None:
    """Have every group of this worker unlink its segment when the whole group has mapped it."""
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

    share = _CPUSHMDistributed._init_cpu_shm

    @wraps(share)
    def share_and_unlink(group: Any) -> Any:
        # It returns from a barrier behind the mapping.
        handle = share(group)
        (SEGMENTS / f"{group.group_name}_{group.communicator.rank}").unlink(missing_ok=True)
        return handle

    _CPUSHMDistributed._init_cpu_shm = share_and_unlink
