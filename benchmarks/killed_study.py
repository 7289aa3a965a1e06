"""A real study killed by SIGKILL again and again, resumed until it is done, and held against one left alone.

    python benchmarks/killed_study.py [--kills 8] [--seed 1] [--folder DIR] [--study FILE]

Prints what was killed when and what became of it. Ends with 1 where fewer runs were killed than were to be; where a
pass that the journal had kept before a kill is in no record and no row, or not in the final rows as it was; where one
was measured twice; where a row's runners differed in what they were measured on; or where the two studies' tables
differ in shape.
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

from kept_passes import (
    changed_conditions,
    doubled,
    kept_passes,
    lost,
    passes_noted,
    rows_standing,
    shape,
    shape_differences,
    unheld,
)

from wattdock.config import load_study
from wattdock.errors import ConfigError, WattdockError

if TYPE_CHECKING:
    from kept_passes import Passes, Rows

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
# A kill comes so soon after its pass was kept, after a row was begun to be written, or after the start of its run.
MOST_LATER_S, MOST_STORING_S, MOST_EARLY_S = 2.0, 0.05, 10.0
POLL_S, QUICK_POLL_S = 0.02, 0.001
# A runner whose coordinator was killed holds its lease until it has ended.
WAIT_S = 120


@dataclass(frozen=True)
class Moment:
    """When to kill: `later_s` after the study has kept so many passes, or when it has kept the next one.

    Attributes:
        passes: Of all that the study measures; None for so long after the start of the run.
        storing: Then it waits for a row to be written first.
    """

    passes: int | None
    later_s: float
    storing: bool = False


@dataclass(frozen=True)
class Kill:
    """One run that was killed, or that ended before its moment came.

    Attributes:
        ran_s: From its start to its end.
        doing: The last line of its progress.
        before: Passes in the journal when it began.
        kept: Those of the journal when it was dead, as they then stood.
        missing: Those of the journal that stood nowhere else.
        rows: What then stood of the rows.
    """

    ran_s: float
    doing: str
    before: int
    kept: Passes
    missing: list[str]
    rows: Rows
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

    def entries(self) -> set[str]:
        """Return the names of the rows, those that are being written too."""
        return {path.name for path in self.output_dir.iterdir()} if self.output_dir.exists() else set()

    def last_line(self) -> str:
        """Return what the coordinator said last."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "nothing yet")


def moments(chance: random.Random, kills: int, *, passes: int) -> list[Moment]:
    """Return when to kill a study of `passes` passes, in the order of its passes.

    One in six is killed during a launch or load, the last and the third last of the others while a row is stored.
    """
    early = {chance.randrange(one, min(one + 6, kills - 1)) for one in range(0, kills - 1, 6)}
    storing = [number for number in range(kills) if number not in early][:-5:-2]
    planned = []
    for number, kept in enumerate(sorted(chance.sample(range(passes), kills))):
        if number in early:
            planned.append(Moment(None, chance.uniform(0.5, MOST_EARLY_S)))
        elif number in storing:
            planned.append(Moment(kept, chance.uniform(0, MOST_STORING_S), storing=True))
        else:
            planned.append(Moment(kept, chance.uniform(0, MOST_LATER_S)))
    return planned


def kill(place: Place, moment: Moment) -> Kill:
    """Run the study until `moment`, and kill its coordinator."""
    before, began_s = passes_noted(place.output_dir), time.monotonic()
    running = place.start()
    while running.poll() is None and passes_noted(place.output_dir) < (moment.passes or 0):
        time.sleep(POLL_S)
    entries = place.entries()
    while running.poll() is None and moment.storing and place.entries() <= entries:
        time.sleep(QUICK_POLL_S)
    deadline_s, reached = time.monotonic() + moment.later_s, max(before, moment.passes or 0)
    while running.poll() is None and time.monotonic() < deadline_s:
        if not moment.storing and passes_noted(place.output_dir) > reached:
            break
        time.sleep(QUICK_POLL_S if moment.storing else POLL_S)
    doing = place.last_line()
    running.kill()
    ended = running.wait() != -signal.SIGKILL
    return seen_dead(place.output_dir, before, doing, ran_s=time.monotonic() - began_s, ended=ended)


def seen_dead(output_dir: Path, before: int, doing: str, *, ran_s: float, ended: bool) -> Kill:
    """Return what stands of the study after a run that began with `before` passes."""
    kept = kept_passes(output_dir)
    return Kill(ran_s, doing, before, kept, unheld(output_dir, kept), rows_standing(output_dir), ended=ended)


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
    after = "start" if moment.passes is None else f"{moment.passes} passes kept"
    when = f"{after}{', a row begun' if moment.storing else ''} + {moment.later_s:.2f} s"
    how = "had ended" if seen.ended else seen.doing.replace("|", "/")
    rows = f"{seen.rows.said}, {seen.rows.unsaid}, {seen.rows.half}"
    return f"| {number} | {when} | {seen.ran_s:.1f} s | {how} | {seen.before} → {len(seen.kept)} | {rows} |\n"


def killed(place: Place, plan: list[Moment], say: Path) -> tuple[list[Kill], float]:
    """Kill and resume as planned, then let it end; return what each death left, and how long it all took."""
    deaths: list[Kill] = []
    with say.open("w") as out:
        for number, moment in enumerate(plan, start=1):
            deaths.append(kill(place, moment))
            line = told(number, moment, deaths[-1])
            out.write(line)
            sys.stdout.write(line)
            sys.stdout.flush()
    return deaths, sum(one.ran_s for one in deaths) + finish(place)


def compare(deaths: list[Kill], one: Path, other: Path) -> list[str]:
    """Return everything in which the killed study at `one` is not what it should be."""
    after = kept_passes(one)
    found = []
    for number, seen in enumerate(deaths, start=1):
        wrong = [*(["the run had ended before"] if seen.ended else []), *seen.missing, *lost(seen.kept, after)]
        found += [f"kill {number}: {problem}" for problem in wrong]
    found += [*unheld(one, after), *doubled(one), *changed_conditions(one)]
    return found + shape_differences(shape(one), shape(other))


def run(options: argparse.Namespace, folder: Path) -> list[str]:
    """Measure both studies in `folder`, print the tables, and return what is wrong."""
    file = folder / "killed.yaml"
    file.write_text(options.study.read_text() if options.study else STUDY)
    total = sum(one.repeats.restarts * one.repeats.passes for one in load_study(file, {}).experiments)
    if not 0 < options.kills <= total:
        raise ConfigError(f"--kills {options.kills}: the study has {total} passes; name 1 to {total}")
    plan = moments(random.Random(options.seed), options.kills, passes=total)
    sys.stdout.write("| kill | planned | ran | doing | passes kept | rows noted, whole, half |\n")
    sys.stdout.write("|---|---|---|---|---|---|\n")
    places = [Place(file, folder / name, folder / f"{name}.log") for name in ("killed", "whole")]
    deaths, killed_s = killed(places[0], plan, folder / "kills.md")
    whole_s = finish(places[1])
    problems = compare(deaths, places[0].output_dir, places[1].output_dir)
    table = shape(places[0].output_dir)
    passes = [one for row in table.values() for one in row.passes.values()]
    sys.stdout.write(
        f"\n{len(table)} rows, {len(passes)} passes, {sum(one.requests for one in passes)} requests, "
        f"{sum(one.output_tokens for one in passes)} output tokens; killed and resumed {killed_s:.0f} s, left alone "
        f"{whole_s:.0f} s; {sum(not one.ended for one in deaths)} of {len(plan)} kills, after which "
        f"{sum(len(one.kept) for one in deaths)} passes were looked at\n"
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
        sys.stdout.write("nothing lost, nothing measured twice, on and with the same, equal in shape\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
