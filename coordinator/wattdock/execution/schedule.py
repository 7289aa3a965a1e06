"""Which runner serves which experiments, in which order, how long it takes, and when a backend is given up.

The time left is judged by durations that were measured, never guessed: work whose duration is unknown counts with its
lower bound, and the sum is then called "at least".
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING

from wattdock.clock import NS_PER_S
from wattdock.errors import StoreError
from wattdock.store import load_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from wattdock.analysis import StoredSpan
    from wattdock.config import ExperimentConfig, Study
    from wattdock.metering import Span
    from wattdock.records import Failure

Groups = tuple[tuple[int, ...], ...]


def load_groups(experiments: Sequence[ExperimentConfig]) -> Groups:
    """Group experiments that one runner with one loaded model can serve, wherever they stand.

    An experiment with `isolation: experiment` shares its runner with no other.

    Returns:
        Positions in `experiments`; groups in the order of their first.
    """
    groups: dict[tuple[str, int | None], list[int]] = {}
    for position, experiment in enumerate(experiments):
        alone = position if experiment.isolation == "experiment" else None
        groups.setdefault((experiment.load_key, alone), []).append(position)
    return tuple(map(tuple, groups.values()))


def schedule(study: Study, groups: Groups, restart: int) -> Groups:
    """Return the load groups in the order in which restart number `restart` serves them.

    Shuffled orders depend on the seed, the restart and what is measured, not on how the file is written.
    """
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


class Breaker:
    """Counts, per backend, attempts in a row that ended in the same kind of failure at the same stage.

    Args:
        limit: Failures in a row after which a backend is given up; None for never.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._failures: dict[str, tuple[tuple[str, str], int]] = {}

    def note(self, backend: str, failure: Failure | None, *, measured: bool) -> None:
        """Note how an attempt ended; an attempt that measured a pass starts the count again."""
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
            f"{backend}: {count} attempts in a row failed with {kind} ({stage}); the rest of its experiments is given "
            "up (see stop_after_failures)"
        )


PASS, OPENING = "pass", ("idle-empty", "launch", "load")
# Spans of a restart around its measured passes.
AROUND = ("idle-loaded-before", "warm-up", "one-token", "idle-loaded-after")


@dataclass(frozen=True)
class Cost:
    """Mean seconds of an experiment's parts; None where none was seen.

    Attributes:
        opening_s: Idle before a runner starts, launching it and loading the model.
        around_s: All warm-up and one-token passes of a restart, and its idle spans, together.
        pass_s: One measured pass.
    """

    opening_s: float | None
    around_s: float | None
    pass_s: float | None


@dataclass(frozen=True)
class Remaining:
    """What is left of one experiment.

    Attributes:
        passes_left: Measured passes left, one number per restart that is not complete.
        cost: As seen in this study or in earlier results; None where the experiment never ran.
    """

    config: ExperimentConfig
    passes_left: tuple[int, ...]
    cost: Cost | None


@dataclass(frozen=True)
class Duration:
    """Seconds; `whole` is False where they are a lower bound."""

    seconds: float
    whole: bool

    def __add__(self, other: Duration) -> Duration:
        return Duration(self.seconds + other.seconds, self.whole and other.whole)

    def __str__(self) -> str:
        if not self.whole and self.seconds < 1:
            return "time unknown"
        return words(self.seconds) if self.whole else f"at least {words(self.seconds)}"


@dataclass(frozen=True)
class Forecast:
    """What a study that has not begun would take.

    Attributes:
        groups: Load groups, as positions of experiments.
        experiments: How long each experiment takes by itself.
        passes: Measured passes of all experiments.
        total: How long the study takes.
    """

    groups: Groups
    experiments: tuple[Duration, ...]
    passes: int
    total: Duration


def forecast(experiments: Sequence[ExperimentConfig], output_dir: Path) -> Forecast:
    """Return what experiments would take, judged by their earlier results under `output_dir`."""
    costs = earlier_costs(experiments, output_dir)
    work = [
        Remaining(config, (config.repeats.passes,) * config.repeats.restarts, costs.get(config.experiment_id))
        for config in experiments
    ]
    groups = load_groups(experiments)
    alone = tuple(duration([experiment], ((0,),)) for experiment in work)
    passes = sum(sum(experiment.passes_left) for experiment in work)
    return Forecast(groups, alone, passes, duration(work, groups))


def cost_of(spans: Iterable[Span] | Iterable[StoredSpan]) -> Cost:
    """Return what the spans of an experiment's restarts cost."""
    seconds: dict[str, list[float]] = {}
    for span in spans:
        seconds.setdefault(span.name, []).append((span.end_ns - span.start_ns) / NS_PER_S)
    opening = [mean(seconds[name]) for name in OPENING if name in seconds]
    restarts = max((len(seconds.get(name, ())) for name in OPENING), default=0)
    return Cost(
        opening_s=sum(opening) if opening else None,
        around_s=sum(sum(seconds.get(name, ())) for name in AROUND) / max(restarts, 1),
        pass_s=mean(seconds[PASS]) if PASS in seconds else None,
    )


def earlier_costs(experiments: Sequence[ExperimentConfig], output_dir: Path) -> Mapping[str, Cost]:
    """Return what each experiment cost in its latest good result under `output_dir`, by experiment id."""
    folders: dict[str, list[Path]] = {}
    for path in sorted(output_dir.glob("2*-*-*")):
        folders.setdefault(path.name.split("-")[2], []).append(path)
    ids = [experiment.experiment_id for experiment in experiments]
    found = {experiment_id: _earlier_cost(folders.get(experiment_id[:8], ()), experiment_id) for experiment_id in ids}
    return {experiment_id: cost for experiment_id, cost in found.items() if cost}


def _earlier_cost(folders: Sequence[Path], experiment_id: str) -> Cost | None:
    for folder in reversed(folders):
        try:
            result = load_result(folder)
        except StoreError:
            # Another version's, or being written: it only would have told how long it took.
            continue
        if result.status == "ok" and result.experiment_id == experiment_id:
            return cost_of(result.spans)
    return None


def duration(work: Sequence[Remaining], groups: Groups) -> Duration:
    """Return how long all of `work` takes.

    Args:
        groups: Load groups, positions in `work`: each is opened once for each restart that is left in it.
    """
    opened = {
        item.config.backend: item.cost.opening_s for item in work if item.cost and item.cost.opening_s is not None
    }
    total = Duration(0.0, whole=True)
    for group in groups:
        members = [work[position] for position in group]
        total = sum(map(_serving, members), total) + _opening(members, opened)
    return total


def _serving(item: Remaining) -> Duration:
    left = sum(item.passes_left)
    if item.cost and item.cost.pass_s is not None:
        return Duration(left * item.cost.pass_s + len(item.passes_left) * (item.cost.around_s or 0.0), whole=True)
    return Duration(left * (item.config.workload.min_duration_s or 0.0), whole=not left)


def _opening(members: Sequence[Remaining], opened: Mapping[str, float]) -> Duration:
    """Return how long a group's runners take to open: as long as this group's did, else the same backend's."""
    restarts = max(len(member.passes_left) for member in members)
    own = next((item.cost.opening_s for item in members if item.cost and item.cost.opening_s is not None), None)
    seen_s = opened.get(members[0].config.backend) if own is None else own
    return Duration(restarts * (seen_s or 0.0), whole=seen_s is not None or not restarts)


def words(seconds: float) -> str:
    """Return a duration as people say it: "45 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
