"""How long experiments take, judged by their earlier results, and which of them can share a runner."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.clock import NS_PER_S
from wattdock.errors import StoreError
from wattdock.metering import Span
from wattdock.store import load_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from wattdock.config import ExperimentConfig


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


# The duration of experiments of which nothing alike was measured yet.
UNMEASURED = "time unknown until the first pass"

# Spans of one experiment. Launch and load, which the experiments of a load group share, are not among them.
MEASURING = ("pass", "warm-up", "questions")


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
        return self.passes * ((config.workload.min_duration_s or 0.0) + config.warmup.lead_in(0.0))


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
    """Return the mean seconds of a measured pass, with its share of warm-up and questions; None without a pass."""
    measuring = [span for span in spans if span.name in MEASURING]
    passes = sum(span.name == "pass" for span in measuring)
    return sum(span.end_ns - span.start_ns for span in measuring) / NS_PER_S / passes if passes else None


def earlier_pass_s(experiments: Sequence[ExperimentConfig], output_dir: Path) -> Mapping[str, float]:
    """Return the seconds of a pass by experiment id, from the latest whole result or, without one, any with a pass."""
    folders: dict[str, list[Path]] = {}
    for path in sorted(output_dir.glob("2*-*-*")):
        folders.setdefault(path.name.split("-")[2], []).append(path)
    seconds: dict[str, float] = {}
    for experiment_id in {experiment.experiment_id for experiment in experiments}:
        # Of results that another version wrote only an estimate is lost.
        for folder in reversed(folders.get(experiment_id[:8], ())):
            with suppress(StoreError):
                result = load_result(folder)
                spans = [Span(span.name, span.start_ns, span.end_ns) for span in result.spans]
                if result.experiment_id == experiment_id and (pass_s := pass_seconds(spans)):
                    if result.status == "ok":
                        seconds[experiment_id] = pass_s
                        break
                    # Few passes bear the whole warm-up of an interrupted run.
                    seconds.setdefault(experiment_id, pass_s)
    return seconds


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
