"""One child of `exchange`: look at the GPUs through torch, or be one rank of a timed all-reduce.

Run as a program, with whatever torch the backend's environment holds; prints one JSON object as its last line.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

WARM_UP = 5
BYTES_PER_ELEMENT = 4
BACKENDS = {"cuda": "nccl", "cpu": "gloo"}


def look(torch: Any) -> dict[str, Any]:
    """Return versions, and which GPU can read which other's memory."""
    count = torch.cuda.device_count()
    peers = [[i == j or torch.cuda.can_device_access_peer(i, j) for j in range(count)] for i in range(count)]
    nccl = torch.cuda.nccl.version() if torch.version.cuda else None
    return {
        "count": count,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
        "peers": peers,
    }


def reduce(torch: Any, device: str, rank: int, count: int, meeting: str, size_bytes: int, rounds: int) -> float:
    """Return the mean seconds of one all-reduce of `size_bytes`, as rank `rank` of `count` that meet in a file."""
    distributed = importlib.import_module("torch.distributed")
    if device == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group(BACKENDS[device], init_method=f"file://{meeting}", rank=rank, world_size=count)
    try:
        values = torch.zeros(size_bytes // BYTES_PER_ELEMENT, dtype=torch.float32, device=device)
        for _ in range(WARM_UP):
            distributed.all_reduce(values)
        _wait(torch, device)
        distributed.barrier()
        start_s = time.monotonic()
        for _ in range(rounds):
            distributed.all_reduce(values)
        _wait(torch, device)
        return (time.monotonic() - start_s) / rounds
    finally:
        distributed.destroy_process_group()


def _wait(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main(words: list[str]) -> int:
    """Do what the words say; return the exit status."""
    # By name: this package stands beside engines of every kind and needs none of them.
    torch = importlib.import_module("torch")
    if words[0] == "look":
        answer = look(torch)
    else:
        device, rank, count, meeting, size_bytes, rounds = words[1:]
        seconds = reduce(torch, device, int(rank), int(count), meeting, int(size_bytes), int(rounds))
        answer = {"seconds": seconds}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
