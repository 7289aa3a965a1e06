"""Many processes that want GPUs at once: `python contenders.py FOLDER PROCESSES SEED`.

Prints one line per GPU and process, "GPU start_ns end_ns", of the time in which it held the GPU; every tenth process
then kills itself while it holds them.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from wattdock.host import leases

GPUS = ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
WAIT_S, MOST_HELD_S = 100.0, 0.03


def contend(folder: Path, number: int, seed: int) -> None:
    chance = random.Random(seed * 1_000 + number)
    names = tuple(chance.sample(GPUS, chance.choice((1, 1, 2, 4))))
    with leases.hold(leases.LeaseRequest(names, "gpus", WAIT_S), lambda line: None, folder):
        start_ns = time.monotonic_ns()
        time.sleep(chance.uniform(0, MOST_HELD_S))
        end_ns = time.monotonic_ns()
        os.write(1, "".join(f"{name} {start_ns} {end_ns}\n" for name in names).encode())
        if number % 10 == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    folder, processes, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    children = []
    for number in range(processes):
        if (child := os.fork()) == 0:
            contend(folder, number, seed)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
