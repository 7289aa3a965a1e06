"""Load pulses at random distances, for characterising an energy counter: python wattdock_pytorch_pulses.py COUNT.

Prints one JSON line [kind, on_ns, off_ns] per pulse: when the first kernel was launched on an idle GPU, and when the
device had drained, CLOCK_MONOTONIC. Runs on the first GPU that it sees, in a process of its own.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

PULSE_S = 0.6
GAP_S = (0.6, 0.8)


def timed(work: Callable[[], object], count: int) -> tuple[int, int]:
    """Run `work` so many times on an idle device; return when it began and when the device had drained, ns."""
    torch.cuda.synchronize()
    begun_ns = time.monotonic_ns()
    for _ in range(count):
        work()
    torch.cuda.synchronize()
    return begun_ns, time.monotonic_ns()


def main() -> None:
    """Alternate between arithmetic and copying, which begin and end differently."""
    draw = random.Random(0)
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    product, source = torch.empty_like(a), torch.empty(2**30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    kinds: dict[str, Callable[[], object]] = {
        "matmul": lambda: torch.mm(a, a, out=product),
        "copy": lambda: target.copy_(source),
    }
    counts = {}
    for kind, work in kinds.items():
        timed(work, 20)
        begun_ns, ended_ns = timed(work, 100)
        counts[kind] = max(1, int(100 * PULSE_S * 1e9 / (ended_ns - begun_ns)))
    for number in range(int(sys.argv[1])):
        kind = list(kinds)[number % len(kinds)]
        time.sleep(draw.uniform(*GAP_S))
        sys.stdout.write(json.dumps([kind, *timed(kinds[kind], counts[kind])]) + "\n")
        sys.stdout.flush()
    time.sleep(GAP_S[1])


if __name__ == "__main__":
    main()
