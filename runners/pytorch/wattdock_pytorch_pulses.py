"""Load pulses at random distances, for characterising a GPU: python wattdock_pytorch_pulses.py COUNT.

Prints a JSON line per pulse, kind, on_ns, off_ns: when the first kernel was launched on an idle GPU, and when the
device had drained, CLOCK_MONOTONIC. First COUNT short ones with steep edges, for the energy counter; then longer ones
of known work, for the energy of arithmetic and memory traffic, whose lines go on with operations, bytes moved at least,
and bits of an operand. Runs on the first GPU that it sees, in a process of its own.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

EDGE_PULSE_S, WORK_PULSE_S, WORK_ROUNDS = 0.6, 1.5, 3
GAP_S = (0.6, 0.8)
# Matrices of SIDE × SIDE, so many that together they are far larger than a GPU's cache.
SIDE, MATRICES = 8192, 8
COPIED_BYTES = 2**30
# Rows of the other factor: from reading weights for one request to a prefill's arithmetic.
ROWS, ROWS_8BIT = (1, 16, 64, 256, 1024, SIDE), (64, SIDE)
# Tensor cores for 8-bit floating point. Source: CUDA C++ Programming Guide, compute capabilities.
CAPABILITY_8BIT = (8, 9)


class Work(NamedTuple):
    """One call of `run`, and what it takes."""

    run: Callable[[], Any]
    operations: float = 0.0
    bytes_moved: float = 0.0
    bits: int = 16


def products(matrices: torch.Tensor, rows: int) -> Work:
    """Return products of a few rows with one matrix after another, in 16 bits."""
    weights, given = itertools.cycle(matrices), torch.randn(rows, SIDE, device="cuda", dtype=matrices.dtype)
    out = torch.empty_like(given)
    return Work(lambda: torch.mm(given, next(weights), out=out), 2 * rows * SIDE**2, 2 * (SIDE**2 + 2 * rows * SIDE))


def products_8bit(matrices: torch.Tensor, rows: int) -> Work:
    """Return the same in 8-bit floating point, with results of 16 bits."""
    weights, given = itertools.cycle(matrices), torch.randn(rows, SIDE, device="cuda").to(matrices.dtype)
    one = torch.ones((), device="cuda")

    def run() -> Any:
        return torch._scaled_mm(given, next(weights).t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return Work(run, 2 * rows * SIDE**2, SIDE**2 + 3 * rows * SIDE, 8)


def copies() -> Work:
    """Return copies within the GPU's memory."""
    source = torch.empty(COPIED_BYTES, device="cuda", dtype=torch.uint8).random_()
    target = torch.empty_like(source)
    return Work(lambda: target.copy_(source), 0, 2 * COPIED_BYTES)


def timed(work: Work, count: int) -> tuple[int, int]:
    """Run `work` so many times on an idle device; return when it began and when the device had drained, ns."""
    torch.cuda.synchronize()
    begun_ns = time.monotonic_ns()
    for _ in range(count):
        work.run()
    torch.cuda.synchronize()
    return begun_ns, time.monotonic_ns()


def runs(work: Work) -> bool:
    """Whether this torch has the kernel: the call is not one of its public ones."""
    try:
        timed(work, 1)
    except (AttributeError, TypeError, RuntimeError):
        return False
    return True


def count_for(work: Work, duration_s: float) -> int:
    """Return how many calls fill a pulse."""
    timed(work, 20)
    begun_ns, ended_ns = timed(work, 100)
    return max(1, int(100 * duration_s * 1e9 / (ended_ns - begun_ns)))


def pulse(kind: str, work: Work, count: int, draw: random.Random) -> tuple[str, int, int]:
    """Run a pulse a random time after what was before it."""
    time.sleep(draw.uniform(*GAP_S))
    return kind, *timed(work, count)


def tell(*line: object) -> None:
    """Print a line at once."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Alternate between arithmetic and copying, which begin and end differently; then run every kind of work."""
    draw = random.Random(0)
    matrices = torch.randn(MATRICES, SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    edges = {"matmul": products(matrices, SIDE), "copy": copies()}
    counts = {kind: count_for(work, EDGE_PULSE_S) for kind, work in edges.items()}
    for kind in itertools.islice(itertools.cycle(edges), int(sys.argv[1])):
        tell(*pulse(kind, edges[kind], counts[kind], draw))
    of_known_work = {"copies": edges["copy"]} | {f"products of {rows} rows": products(matrices, rows) for rows in ROWS}
    if torch.cuda.get_device_capability() >= CAPABILITY_8BIT:
        narrow = matrices.to(torch.float8_e4m3fn)
        of_8_bits = {f"8-bit products of {rows} rows": products_8bit(narrow, rows) for rows in ROWS_8BIT}
        of_known_work |= {kind: work for kind, work in of_8_bits.items() if runs(work)}
    counts = {kind: count_for(work, WORK_PULSE_S) for kind, work in of_known_work.items()}
    for kind in list(of_known_work) * WORK_ROUNDS:
        work = of_known_work[kind]
        done = counts[kind] * work.operations, counts[kind] * work.bytes_moved, work.bits
        tell(*pulse(kind, work, counts[kind], draw), *done)
    time.sleep(GAP_S[1])


if __name__ == "__main__":
    main()
