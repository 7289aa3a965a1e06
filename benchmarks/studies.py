"""What studies and their results cost: planning, listing, and load groups."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from overheads import Row, row, timed_ms

from wattdock.launch.runners import REPO

# How many stored results are listed and queried.
RESULTS = 10_000
SQL = "SELECT batch_size, avg(energy_per_output_token_j) FROM results GROUP BY ALL"
AXIS = list(range(1, 101))
SWEEP = f"sweep:\n  workload.batch_size: {AXIS}\n  workload.max_output_tokens: {AXIS}\n"
WORKLOADS = """\
defaults: {backend: pytorch, model: 'shape:tiny-llama', repeats: {passes: 1},
  workload: {max_output_tokens: 4, prompts: {source: synthetic, input_tokens: 16}}}
sweep: {workload.batch_size: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}
"""


def studies() -> list[Row]:
    """Return all of these figures."""
    return [*planning(), *looking_at_results(), *load_groups()]


def planning() -> list[Row]:
    """From a sweep of 10,000 points to a checked, grouped plan, as a person runs it."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "study.yaml"
        file.write_text(SWEEP)
        return [
            row("wattdock plan, 10,000 points", timed_ms(partial(wattdock, "plan", file), repeats=3), most_ms=2_000)
        ]


def looking_at_results() -> list[Row]:
    """List and query stored results, each a copy of a stored sample: all of them new, then from the index of rows."""
    sample = (REPO / "tests" / "data" / "result.json").read_text()
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(RESULTS):
            folder = Path(scratch) / f"20260101T000000-fake-{number:08x}"
            folder.mkdir()
            (folder / "result.json").write_text(sample)
        first_ms = timed_ms(partial(wattdock, "results", "list", "--output-dir", scratch), repeats=1)
        list_ms = timed_ms(partial(wattdock, "results", "list", "--output-dir", scratch), repeats=5)
        query_ms = timed_ms(partial(wattdock, "results", "query", SQL, "--output-dir", scratch), repeats=5)
    return [
        row(f"results list, {RESULTS:,} new results", first_ms),
        row(f"results list, {RESULTS:,} results", list_ms, most_ms=1_500),
        row(f"results query, mean over {RESULTS:,}", query_ms, most_ms=1_500),
    ]


def load_groups() -> list[Row]:
    """Measure twelve workloads on one loaded PyTorch runner, then with a runner for each."""
    seconds = {}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "study.yaml"
        file.write_text(WORKLOADS)
        for isolation in ("group", "experiment"):
            options = ("--quiet", "--set", f"isolation={isolation}", "--output-dir", Path(scratch) / isolation)
            seconds[isolation] = timed_ms(partial(wattdock, "run", file, *options), repeats=1)[0] / 1e3
    times = f"{seconds['experiment'] / seconds['group']:.1f} times as long"
    return [
        Row("12 workloads, one load group", f"{seconds['group']:.1f} s", "1 run"),
        Row("12 workloads, a runner each", f"{seconds['experiment']:.1f} s", times),
    ]


def wattdock(*words: str | Path) -> None:
    """Run the command and hide what it prints."""
    command = [sys.executable, "-m", "wattdock", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
