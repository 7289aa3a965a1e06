"""Load pulses at random distances, for characterising an energy counter: python wattdock_pytorch_pulses.py COUNT.

Prints a JSON line per pulse, kind, on_ns, off_ns: when the first kernel was launched on an idle GPU, and when the
device had drained, CLOCK_MONOTONIC. Runs on the first GPU that it sees, in a process of its own.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

PULSE_S, GAP_S = 0.6, (0.6, 0.8)
# Rows of a square matrix; a product takes some milliseconds.
SIDE = 8192
COPIED_BYTES = 2**30


def product() -> Callable[[], Any]:
    """Return a product of two matrices."""
    one, other = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(one)
    return lambda: torch.mm(one, other, out=out)


def copy() -> Callable[[], Any]:
    """Return a copy within the GPU's memory."""
    source = torch.empty(COPIED_BYTES, device="cuda", dtype=torch.uint8).random_()
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def timed(work: Callable[[], Any], count: int) -> tuple[int, int]:
    """Run `work` so many times on an idle device; return when it began and when the device had drained, ns."""
    torch.cuda.synchronize()
    begun_ns = time.monotonic_ns()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return begun_ns, time.monotonic_ns()


def count_for(work: Callable[[], Any], duration_s: float) -> int:
    """Return how many calls fill a pulse."""
    timed(work, 20)
    begun_ns, ended_ns = timed(work, 100)
    return max(1, int(100 * duration_s * 1e9 / (ended_ns - begun_ns)))


def main() -> None:
    """Alternate between arithmetic and copying, which begin and end differently."""
    draw = random.Random(0)
    kinds = {"matmul": product(), "copy": copy()}
    counts = {kind: count_for(work, PULSE_S) for kind, work in kinds.items()}
    for kind in itertools.islice(itertools.cycle(kinds), int(sys.argv[1])):
        time.sleep(draw.uniform(*GAP_S))
        sys.stdout.write(json.dumps([kind, *timed(kinds[kind], counts[kind])]) + "\n")
        sys.stdout.flush()
    time.sleep(GAP_S[1])


if __name__ == "__main__":
    main()
