"""What the marks of `wattdock_spans` cost a program, with what its thread writes; in a process of their own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

from overheads import Row, aim

from wattdock.launch.runners import REPO

CALLS, REPEATS, MOST_US = 20_000, 10, 5
# CPU time of a call, in µs. Half a second after the last call, all lines are written.
PROGRAM = f"""
import json, os, time
from wattdock_spans import span, step, work
def mark():
    with span("step"):
        pass
@span("step")
def call():
    pass
def units():
    work(samples=64, tokens=65_536)
for name, marked in {{"span": mark, "decorated function": call, "step": step, "work of two units": units}}.items():
    taken = []
    for _ in range({REPEATS}):
        begun_ns = time.process_time_ns()
        for _ in range({CALLS}):
            marked()
        time.sleep(0.5 if os.environ["WATTDOCK_SPANS"] else 0)
        taken.append((time.process_time_ns() - begun_ns) / {CALLS} / 1e3)
    print(json.dumps([name, taken]), flush=True)
"""


def marks() -> list[Row]:
    """CPU time of each call where nothing measures, and where it is recorded."""
    with tempfile.TemporaryDirectory() as folder:
        return [*rows("", "not recorded"), *rows(folder, "recorded")]


def rows(folder: str, how: str) -> list[Row]:
    """Return a line of each call, where marks go to this folder; none does where it is empty."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PYTHONPATH": str(REPO / "spans"), "WATTDOCK_SPANS": folder},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = []
    for name, taken_us in map(json.loads, done.stdout.splitlines()):
        median_us = statistics.median(taken_us)
        within = f"{min(taken_us):.2f} … {max(taken_us):.2f} µs"
        found.append(Row(f"{name}, {how} (CPU time)", f"{median_us:.2f} µs", within, aim(MOST_US, "µs", median_us)))
    return found
