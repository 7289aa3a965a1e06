"""Which experiments share a runner, in which order they are served, how long they take, when a backend is given up.

The time left is the sum of durations that were measured. An experiment of unknown duration counts with its lower bound,
and the sum is then called "at least".
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.clock import NS_PER_S
from wattdock.errors import StoreError
from wattdock.metering import Span
from wattdock.store import load_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from wattdock.config import ExperimentConfig, Study
    from wattdock.records import Failure

Groups = tuple[tuple[int, ...], ...]


def load_groups(experiments: Sequence[ExperimentConfig]) -> Groups:
    """Group experiments that one runner with one loaded model can serve, adjacent in the study or not.

    An experiment with `isolation: experiment` shares its runner with no other.

    Returns:
        Positions in `experiments`; groups in the order of their first.
    """
    groups: dict[tuple[str, int | None], list[int]] = {}
    for position, experiment in enumerate(experiments):
        alone = position if experiment.isolation == "experiment" else None
        groups.setdefault((experiment.load_key, alone), []).append(position)
    return tuple(map(tuple, groups.values()))


def schedule(study: Study, restart: int) -> Groups:
    """Return the load groups in the order in which restart number `restart` serves them.

    A shuffled order depends on the seed, the restart and the experiments, not on their order in the file.
    """
    groups = load_groups(study.experiments)
    if study.order == "written":
        return groups
    ids = [experiment.experiment_id for experiment in study.experiments]
    shuffler = random.Random(f"{study.seed}/{restart}")
    shuffled = []
    for group in sorted(groups, key=lambda group: min(ids[position] for position in group)):
        positions = sorted(group, key=ids.__getitem__)
        shuffler.shuffle(positions)
        shuffled.append(tuple(positions))
    shuffler.shuffle(shuffled)
    return tuple(shuffled)


class CircuitBreaker:
    """Counts, per backend, sessions in a row that ended in the same kind of failure at the same stage.

    Args:
        limit: Failures in a row after which a backend is given up; None for never.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._failures: dict[str, tuple[tuple[str, str], int]] = {}

    def note(self, backend: str, failure: Failure | None, *, measured: bool) -> None:
        """Note how a session ended; a session that measured a pass starts the count again."""
        if failure is None:
            self._failures.pop(backend, None)
            return
        # "pass 2/3" and "pass 1/3" are one stage.
        kind = (failure.kind, failure.stage.split(" ")[0])
        before, count = self._failures.get(backend, (kind, 0))
        self._failures[backend] = (kind, count + 1 if before == kind and not measured else 1)

    def reason(self, backend: str) -> str | None:
        """Return why a backend is given up; None while it is not."""
        (kind, stage), count = self._failures.get(backend, (("", ""), 0))
        if self._limit is None or count < self._limit:
            return None
        return (
            f"{backend}: {count} attempts in a row failed with {kind} ({stage}); no more of its experiments are tried "
            "(see stop_after_failures)"
        )


# What is left takes so long where nothing alike was measured yet.
UNMEASURED = "time unknown until the first pass"
# Spans of one experiment. Launch and load, which the experiments of a load group share, are not among them.
MEASURING = ("pass", "idle-loaded-before", "warm-up", "idle-loaded-after")


@dataclass(frozen=True)
class Remaining:
    """The passes that an experiment has left.

    Attributes:
        pass_s: Seconds of a pass in this study or in earlier results; None where the experiment never ran.
    """

    config: ExperimentConfig
    passes: int
    pass_s: float | None

    @property
    def least_s(self) -> float:
        """Seconds of all of them; of an experiment that never ran, what its settings ask for at least."""
        if self.pass_s is not None:
            return self.passes * self.pass_s
        config = self.config
        warm_up_s = config.warmup.min_s if config.warmup.profile == "steady" else 0.0
        # Idle spans before and after the passes of a restart, as in `MEASURING`.
        around_s = warm_up_s + 2 * config.idle.duration_s
        return self.passes * ((config.workload.min_duration_s or 0.0) + around_s / config.repeats.passes)


@dataclass(frozen=True)
class Forecast:
    """How long a study would take, in words and without starting runners.

    Attributes:
        groups: Load groups, as positions of experiments.
        experiments: Duration of each experiment; empty where it is unknown.
        passes: Measured passes of all experiments.
        total: Duration of the study.
    """

    groups: Groups
    experiments: tuple[str, ...]
    passes: int
    total: str


def forecast(experiments: Sequence[ExperimentConfig], output_dir: Path) -> Forecast:
    """Return how long experiments would take, judged by their earlier results under `output_dir`."""
    expected_s = earlier_pass_s(experiments, output_dir)
    work = [Remaining(config, config.repeats.measured, expected_s.get(config.experiment_id)) for config in experiments]
    durations = tuple("" if (text := duration([experiment])) == UNMEASURED else text for experiment in work)
    return Forecast(load_groups(experiments), durations, sum(experiment.passes for experiment in work), duration(work))


def pass_seconds(spans: Iterable[Span]) -> float | None:
    """Return the mean seconds of a measured pass, with its share of warm-up and idle; None without a pass."""
    measuring = [span for span in spans if span.name in MEASURING]
    passes = sum(span.name == "pass" for span in measuring)
    return sum(span.end_ns - span.start_ns for span in measuring) / NS_PER_S / passes if passes else None


def earlier_pass_s(experiments: Sequence[ExperimentConfig], output_dir: Path) -> Mapping[str, float]:
    """Return the seconds of a pass in each experiment's latest whole result under `output_dir`, by experiment id."""
    folders: dict[str, list[Path]] = {}
    for path in sorted(output_dir.glob("2*-*-*")):
        folders.setdefault(path.name.split("-")[2], []).append(path)
    ids = [experiment.experiment_id for experiment in experiments]
    seconds = {experiment_id: _earlier(folders.get(experiment_id[:8], ()), experiment_id) for experiment_id in ids}
    return {experiment_id: pass_s for experiment_id, pass_s in seconds.items() if pass_s}


def _earlier(folders: Sequence[Path], experiment_id: str) -> float | None:
    for folder in reversed(folders):
        try:
            result = load_result(folder)
        except StoreError:
            # Written by another version, or incomplete; only an estimate is lost.
            continue
        if result.status == "ok" and result.experiment_id == experiment_id:
            return pass_seconds(Span(span.name, span.start_ns, span.end_ns) for span in result.spans)
    return None


def duration(work: Iterable[Remaining]) -> str:
    """Return how long all of `work` takes without starting runners, in words."""
    unfinished = [experiment for experiment in work if experiment.passes]
    least_s = sum(experiment.least_s for experiment in unfinished)
    if all(experiment.pass_s is not None for experiment in unfinished):
        return words(least_s)
    return f"at least {words(least_s)}" if least_s >= 1 else UNMEASURED


def words(seconds: float) -> str:
    """Return a duration as people say it: "45 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
