"""A real study killed by SIGKILL again and again, resumed until it is done, and held against one left alone.

    python benchmarks/killed_study.py [--kills 8] [--seed 1] [--folder DIR] [--study FILE]

Prints what was killed when and what became of it. Ends with 1 where a pass that the journal had kept before a kill is
not in the final rows as it was, where one was measured twice, or where the two studies' tables differ in shape.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kept_passes import doubled, kept_passes, lost, passes_noted, shape, shape_differences

from wattdock.errors import WattdockError

if TYPE_CHECKING:
    from kept_passes import Passes

# Twelve points, 48 passes, on four runners: two backends × two restarts.
STUDY = """\
defaults:
  model: 'shape:tiny-llama'
  accelerator: cpu
  launcher: process
  workload: {prompts: {source: synthetic, input_tokens: 16}}
  repeats: {restarts: 2, passes: 2}
  pytorch: {dtype: float32}
  vllm: {dtype: float32, max_model_len: 128, enforce_eager: true, kv_cache_memory_bytes: 67108864}
sweep:
  backend: [pytorch, vllm]
  workload.batch_size: [1, 2, 4]
  workload.max_output_tokens: [8, 16]
"""
# A kill comes after so many more passes were kept, and up to so many seconds later; or so soon after the start.
MOST_PASSES, MOST_LATER_S, MOST_EARLY_S = 5, 2.0, 10.0
POLL_S = 0.02
# A runner whose coordinator was killed holds its lease until it has ended.
WAIT_S = 120


@dataclass(frozen=True)
class Moment:
    """When to kill: `later_s` after the run has kept `passes` more passes; none of them: after its start."""

    passes: int
    later_s: float


@dataclass(frozen=True)
class Kill:
    """One run that was killed, or that ended before its moment came.

    Attributes:
        ran_s: From its start to its end.
        doing: The last line of its progress.
        before, after: Passes in the journal when it began and when it was dead.
    """

    ran_s: float
    doing: str
    before: int
    after: int
    ended: bool


@dataclass(frozen=True)
class Place:
    """Where one of the two studies is measured."""

    file: Path
    output_dir: Path
    log: Path

    def start(self) -> subprocess.Popen[bytes]:
        """Start a coordinator that goes on with the study."""
        command: list[str | Path] = [sys.executable, "-m", "wattdock", "run", self.file, "--resume"]
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [*command, "--wait", str(WAIT_S), "--output-dir", self.output_dir],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def last_line(self) -> str:
        """Return what the coordinator said last."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "nothing yet")


def moments(chance: random.Random, kills: int) -> list[Moment]:
    """Return when to kill: one in six during a launch or load, the others once passes were kept."""
    early = {chance.randrange(first, min(first + 6, kills)) for first in range(0, kills, 6)}
    return [
        Moment(0, chance.uniform(0.5, MOST_EARLY_S))
        if number in early
        else Moment(chance.randint(1, MOST_PASSES), chance.uniform(0, MOST_LATER_S))
        for number in range(kills)
    ]


def kill(place: Place, moment: Moment) -> Kill:
    """Run the study until `moment`, and kill its coordinator."""
    before, began_s = passes_noted(place.output_dir), time.monotonic()
    running = place.start()
    while running.poll() is None and passes_noted(place.output_dir) < before + moment.passes:
        time.sleep(POLL_S)
    deadline_s = time.monotonic() + moment.later_s
    while running.poll() is None and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    ended = running.poll() is not None
    doing = place.last_line()
    if not ended:
        running.send_signal(signal.SIGKILL)
        running.wait()
    return Kill(time.monotonic() - began_s, doing, before, passes_noted(place.output_dir), ended)


def finish(place: Place) -> float:
    """Run the study to its end and return how long that took, in seconds.

    Raises:
        RuntimeError: It failed.
    """
    began_s = time.monotonic()
    if code := place.start().wait():
        raise RuntimeError(f"the study ended with {code}: {place.last_line()}")
    return time.monotonic() - began_s


def told(number: int, moment: Moment, seen: Kill) -> str:
    """Return one kill's line of the table."""
    when = f"{moment.passes} more passes kept + {moment.later_s:.1f} s" if moment.passes else f"{moment.later_s:.1f} s"
    how = "had ended" if seen.ended else seen.doing.replace("|", "/")
    return f"| {number} | {when} | {seen.ran_s:.1f} s | {how} | {seen.before} → {seen.after} |\n"


def killed(place: Place, plan: list[Moment], say: Path) -> tuple[list[Passes], float]:
    """Kill and resume as planned, then let it end; return what was kept at each death, and how long it all took."""
    deaths: list[Passes] = []
    spent_s = 0.0
    with say.open("w") as out:
        for number, moment in enumerate(plan, start=1):
            seen = kill(place, moment)
            spent_s += seen.ran_s
            deaths.append(kept_passes(place.output_dir))
            line = told(number, moment, seen)
            out.write(line)
            sys.stdout.write(line)
            sys.stdout.flush()
    return deaths, spent_s + finish(place)


def compare(deaths: list[Passes], one: Path, other: Path) -> list[str]:
    """Return everything in which the killed study at `one` is not what it should be."""
    found = [
        f"after kill {number}: {problem}"
        for number, before in enumerate(deaths, start=1)
        for problem in lost(before, kept_passes(one))
    ]
    return [*found, *doubled(one), *shape_differences(shape(one), shape(other))]


def run(options: argparse.Namespace, folder: Path) -> list[str]:
    """Measure both studies in `folder`, print the tables, and return what is wrong."""
    file = folder / "killed.yaml"
    file.write_text(options.study.read_text() if options.study else STUDY)
    plan = moments(random.Random(options.seed), options.kills)
    sys.stdout.write("| kill | planned | ran | doing | passes kept |\n|---|---|---|---|---|\n")
    places = [Place(file, folder / name, folder / f"{name}.log") for name in ("killed", "whole")]
    deaths, killed_s = killed(places[0], plan, folder / "kills.md")
    whole_s = finish(places[1])
    problems = compare(deaths, places[0].output_dir, places[1].output_dir)
    table = shape(places[0].output_dir)
    passes = [one for row in table.values() for one in row.passes.values()]
    sys.stdout.write(
        f"\n{len(table)} rows, {len(passes)} passes, {sum(one.requests for one in passes)} requests, "
        f"{sum(one.output_tokens for one in passes)} output tokens; killed and resumed {killed_s:.0f} s, left alone "
        f"{whole_s:.0f} s; {sum(map(len, deaths))} passes looked at after the kills, "
        f"{sum(bool(one) for one in deaths)} of {len(deaths)} kills with passes kept\n"
    )
    return problems


def parser() -> argparse.ArgumentParser:
    """Return the command's arguments."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--kills", type=int, default=8)
    made.add_argument("--seed", type=int, default=1, help="of the moments")
    made.add_argument("--study", type=Path, help="another study; its passes must have a fixed number of requests")
    made.add_argument("--folder", type=Path, help="an empty folder to keep everything in; none: a temporary one")
    return made


def main() -> int:
    """Run the command and return its exit code."""
    options = parser().parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            sys.stderr.write(f"{folder} is not empty; name another with --folder\n")
            return 2
        try:
            problems = run(options, folder)
        except (WattdockError, RuntimeError) as error:
            sys.stderr.write(f"{error}\n")
            return 1
    for problem in problems:
        sys.stdout.write(f"WRONG: {problem}\n")
    if not problems:
        sys.stdout.write("nothing lost, nothing measured twice, equal in shape\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
