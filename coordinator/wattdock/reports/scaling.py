"""Scaling over GPU counts: speed-up, efficiency, and the split that costs least energy per token.

Results that differ only in how the model is split over GPUs share a `Setting`; those of one split are pooled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from math import hypot, inf, log, sqrt
from operator import add
from typing import TYPE_CHECKING

from wattdock.analysis import Audit, Budget, conditions, statistics
from wattdock.config import Split
from wattdock.errors import Cause, ConfigError
from wattdock.reports.cells import figure_text
from wattdock.reports.pairs import SIGNIFICANCE
from wattdock.reports.sessions import ONE_SESSION, Outcome, apart, by_session, outcome, sessions_among, unshown
from wattdock.reports.wording import boundaries, lengths_text
from wattdock.text import joules_per, significant
from wattdock.values import known_max

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.records import EnvironmentSnapshot
    from wattdock.store import StoredResult

# Sources of prompts that follow from the workload: equal workloads have equal prompts.
GENERATED = ("bundled", "synthetic")
# Settings of backends that say how a model is split; all others have to be equal on one curve.
SPLIT_KEYS = {
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "tp_size", "pp_size"),
    *("device_map", "tp_plan"),
}
# Settings of how long a result was measured, and of its order; two results of one curve may differ in them.
NOT_THE_WORK = {"min_duration_s", "min_requests", "seed"}
# Conditions that have to be equal on one curve.
SAME_CONDITIONS = (
    *("model", "model revision", "weights", "backend", "framework version"),
    *("GPU", "GPU power limit, W", "energy boundary", "variables"),
)
SINGLE_GPU = "one GPU"
# How splits are compared that were not measured in turns.
INDEPENDENT = "independent intervals"
# Fewest sizes to which a law of scaling is fitted: any fits two, and nearly any three.
LEAST_SIZES = 4
METHOD = (
    "Joules: of {covered}, over the GPUs used. Scaling of engines is strong, the same "
    "requests in flight at every size. Joules of one result: with the interval of its uncertainty "
    "budget; other figures: a sum over all restarts ÷ a sum, with Student's t interval from how restarts differ, of "
    "speed also the list of requests that all restarts send, of pooled joules the budgets' other entries. "
    "Ratios: of splits that were measured in turns, by the paired t-test of `compare`, restart by restart; else of "
    "these figures, with a 95 % interval from those of both, taken as independent, and 0.3 % (standard deviation) for "
    "each of two sessions. Medians of latency: of one result's requests, so not where several are pooled."
)


@dataclass(frozen=True)
class SplitPoint:
    """One split in one setting.

    Attributes:
        kind: Which way the model is split; points of one kind make a curve.
        restarts: How many stand behind the figures.
        j_per_token, power_w: Over all GPUs used; None unless all results have them.
        ttft_p50_s, tpot_p50_s: None where an engine does not report it, or several results are pooled: their medians
            do not add up to one.
        load_imbalance: The largest of the pooled results.
        communication: Largest share of the time in which a command marked "communication", of the spans that count or
            of its runs; None where it marks none, or that is unknown.
        disturbed: Whether others used CPUs or GPUs of one of them meanwhile.
        results, stored: Names of the pooled results, and these.
        speed_up: Tokens per second ÷ those of the curve's first point; None where the setting has no curve.
        efficiency: Speed-up ÷ how many times as many GPUs.
        energy_ratio: Joules per token ÷ those of the curve's first point.
    """

    kind: str
    split: str
    gpus: int
    restarts: int
    tokens_per_s: statistics.Figure
    j_per_token: statistics.Figure | None
    power_w: statistics.Figure | None
    ttft_p50_s: float | None
    tpot_p50_s: float | None
    load_imbalance: float | None
    communication: float | None
    disturbed: bool
    results: tuple[str, ...]
    stored: tuple[StoredResult, ...] = field(default=(), repr=False)
    speed_up: statistics.Figure | None = None
    efficiency: statistics.Figure | None = None
    energy_ratio: statistics.Figure | None = None

    def freedom(self, quantity: str) -> float:
        """Return the degrees of freedom of a figure's interval: of one result's joules those of its budget."""
        budget = self.stored[0].result.budget if quantity == statistics.ENERGY and len(self.stored) == 1 else None
        return (budget.degrees_of_freedom or inf) if budget else self.restarts - 1


@dataclass(frozen=True)
class Optimum:
    """The split with the fewest joules per token.

    Attributes:
        j_per_token, unit: Its joules per token, or per another unit, which is in the plural.
        next_best, ratio: The next best, and its joules per token ÷ those of the best; None where there is no other.
        method: How the ratio was compared with 1; empty where there is no other.
        not_parted: The others that are not shown to differ from the best (Holm over all of them), and their ratios.
    """

    point: SplitPoint
    j_per_token: float
    unit: str
    next_best: SplitPoint | None = None
    ratio: statistics.Figure | None = None
    method: str = ""
    not_parted: dict[str, statistics.Figure] = field(default_factory=dict)

    @property
    def differs(self) -> bool | None:
        """Whether the interval of the ratio excludes 1; None without an interval."""
        interval = self.ratio and self.ratio.interval
        return not interval.low <= 1 <= interval.high if interval else None

    def __str__(self) -> str:
        text = f"{self.point.split}, {significant(self.j_per_token)} {joules_per(self.unit)}"
        if self.next_best is None or self.ratio is None:
            return f"{text}; there is no other to compare it with"
        verdicts = {True: "differ", False: "do not differ", None: "need three restarts each to show a difference"}
        verdict = f"they {verdicts[self.differs]}{f' ({self.method})' * (self.differs is not None)}"
        also = ", ".join(f"{split} ({figure_text(ratio, '.3f')})" for split, ratio in self.not_parted.items())
        verdict += f"; not shown to differ from the cheapest: {also}" * bool(also)
        return f"{text}; next is {self.next_best.split}, {figure_text(self.ratio, '.3f')} times as much: {verdict}"


@dataclass(frozen=True)
class Setting:
    """Everything but the split: its points are comparable.

    Attributes:
        name, unit: In words; what its work is counted in, in the plural.
        points: By number of GPUs.
        fewest_joules: None where energy was not measured.
    """

    name: str
    unit: str
    points: tuple[SplitPoint, ...]
    fewest_joules: Optimum | None

    @property
    def curves(self) -> dict[str, list[SplitPoint]]:
        """The points of each kind of split, behind the one of a single GPU; empty where only one GPU was measured."""
        kinds = dict.fromkeys(point.kind for point in self.points if point.kind != SINGLE_GPU)
        return {kind: [point for point in self.points if point.kind in (SINGLE_GPU, kind)] for kind in kinds}

    @property
    def serial_shares(self) -> list[str]:
        """Which share of the work seems to run on one GPU alone, of each curve of enough sizes, in words.

        Source: Amdahl, AFIPS 30 (1967) 483, for the same work at every size: 1 / S = s + (1 − s) / N; Gustafson,
        Communications of the ACM 31 (1988) 532, for work that grows with it: S = N − s (N − 1). Least squares.
        """
        lines = []
        for kind, curve in self.curves.items():
            at = [(point.gpus / curve[0].gpus, point.speed_up.value) for point in curve if point.speed_up]
            if len({size for size, _ in at}) < LEAST_SIZES:
                continue
            same = sum((1 / up - 1 / n) * (1 - 1 / n) for n, up in at) / sum((1 - 1 / n) ** 2 for n, _ in at)
            grown = sum((n - up) * (n - 1) for n, up in at) / sum((n - 1) ** 2 for n, _ in at)
            lines.append(
                f"{kind}: serial share {same:.1%} if the work is the same at every size (Amdahl), {grown:.1%} "
                "if it grows with the GPUs (Gustafson)"
            )
        return lines


@dataclass(frozen=True)
class Scaling:
    """Settings with their curves, and how figures were made.

    Attributes:
        left_out: Results on no curve, and why.
    """

    settings: tuple[Setting, ...]
    left_out: dict[str, str]
    method: str


@dataclass(frozen=True)
class _Usable:
    """A result that can be on a curve.

    Attributes:
        split: How many GPUs, and the label of the split.
        restarts: By quantity.
        common: Conditions and settings that have to be equal on one curve: all that do not follow from the split or
            from how long it ran.
    """

    stored: StoredResult
    result: ExperimentResult
    environment: EnvironmentSnapshot
    split: tuple[int, str]
    restarts: dict[str, statistics.Restarts]
    common: tuple[tuple[str, str], ...]


def scale(rows: Sequence[StoredResult]) -> Scaling:
    """Sort results into settings, pool those of one split, and compare the sizes of each kind.

    Raises:
        ConfigError: No result can be compared, with the commonest reason.
    """
    outcomes = [(row.folder.name, _usable_or_reason(row)) for row in rows]
    usable = sorted(
        (member for _, member in outcomes if isinstance(member, _Usable)),
        key=lambda member: (member.common, member.split, member.stored.folder.name),
    )
    left_out = {name: reason for name, reason in outcomes if isinstance(reason, str)}
    if not usable:
        [(reason, count)] = Counter(left_out.values()).most_common(1)
        raise ConfigError(f"none of {len(rows)} results can be compared; {count}: {reason}", cause=Cause.EMPTY)
    groups = [list(group) for _, group in groupby(usable, key=lambda member: member.common)]
    method = METHOD.format(covered=" and ".join(boundaries(member.result for member in usable)))
    return Scaling(tuple(map(_setting, groups)), left_out, method)


def _setting(members: Sequence[_Usable]) -> Setting:
    points = [_point(list(same)) for _, same in groupby(members, key=lambda member: member.split)]
    points.sort(key=lambda point: (point.kind != SINGLE_GPU, point.gpus, point.split))
    environment, work = members[0].environment, members[0].result.config.workload
    dtype = environment.runner.engine_args.get("dtype")
    engine = f"{environment.backend} {environment.runner.framework_version or ''}".strip()
    gpus, config = " + ".join(sorted(set(environment.gpu_names))), members[0].result.config
    parts = [environment.model.name, engine, *([str(dtype)] if dtype else []), gpus, f"batch {work.batch_size}"]
    name = ", ".join([*parts, lengths_text(members[0].result)])
    if config.command:
        words = [member.result.config.label.split() for member in members]
        name = f"{' '.join(word for word in words[0] if all(word in each for each in words)) or config.label}, {gpus}"
    setting = Setting(name, config.unit, tuple(points), optimum(points, config.unit))
    # A curve of one size has nothing that it scales from.
    curves = [curve for curve in setting.curves.values() if curve[-1].gpus > curve[0].gpus]
    firsts = {id(point): curve[0] for curve in curves for point in curve}
    relative = (_relative(point, firsts[id(point)]) if id(point) in firsts else point for point in points)
    return replace(setting, points=tuple(relative))


def _usable_or_reason(stored: StoredResult) -> _Usable | str:
    """Return a result that can be on a curve, or why it cannot."""
    result = stored.result
    if result.status == "interrupted":
        return "interrupted" + ("" if stored.bundle else ", finish with `wattdock run … --resume`")
    if result.status != "ok":
        return f"status {result.status}" + (f": {result.error.message}" if result.error else "")
    if not (result.environment and result.performance and result.energy and result.energy.passes):
        return "it does not say what ran, or nothing was measured"
    if not result.environment.gpu_count:
        return "no GPU was used"
    restarts = {quantity: values for quantity in statistics.RATIOS if (values := result.restarts(quantity))}
    if statistics.SPEED not in restarts or any(min(of_quantity.values) <= 0 for of_quantity in restarts.values()):
        return "a restart's tokens or joules are 0 or less, and of such values there is no ratio"
    environment = result.environment
    # A file under the same path may have changed; other prompts follow from the workload.
    prompts = () if environment.dataset in GENERATED else ("prompts' SHA-256",)
    section, workload = f"setting: {environment.backend}.", "setting: workload."
    left_out = (*(section + key for key in SPLIT_KEYS), *(workload + key for key in NOT_THE_WORK))
    common = tuple(
        (name, text)
        for name, text in sorted(result.conditions.items())
        if name in (*SAME_CONDITIONS, *prompts)
        or (name.startswith((section, workload, conditions.VARIABLE)) and not name.startswith(left_out))
    )
    nodes = f" on {1 + len(environment.nodes)} nodes" if environment.nodes else ""
    split = environment.gpu_count, Split.of(environment.runner.parallelism).label + nodes
    return _Usable(stored, result, environment, split, restarts, common)


def _point(same: Sequence[_Usable]) -> SplitPoint:
    measured = all(statistics.ENERGY in member.restarts for member in same)
    quantities = (statistics.SPEED, statistics.ENERGY, statistics.POWER) if measured else (statistics.SPEED,)
    restarts = {name: reduce(add, (member.restarts[name] for member in same)) for name in quantities}
    speed = same[0].result.performance if len(same) == 1 else None
    figures = {
        # Results that sent other lists vary less together: too wide, if anything.
        name: of_name.figure(known_max(_unshown(member.result, name) for member in same))
        for name, of_name in restarts.items()
    }
    joules = figures.get(statistics.ENERGY)
    if joules and len(same) == 1:
        own = same[0].result.energy_figure
        joules = own and replace(own, value=joules.value)  # of the restarts that make pairs
    return SplitPoint(
        kind=Split.of(same[0].environment.runner.parallelism).kind,
        split=same[0].split[1],
        gpus=same[0].split[0],
        restarts=len(restarts[statistics.SPEED]),
        tokens_per_s=figures[statistics.SPEED],
        j_per_token=joules,
        power_w=figures.get(statistics.POWER),
        ttft_p50_s=speed.ttft.p50_s if speed and speed.ttft else None,
        tpot_p50_s=speed.tpot.p50_s if speed and speed.tpot else None,
        load_imbalance=known_max(each.result.multi_gpu.load_imbalance for each in same if each.result.multi_gpu),
        communication=known_max(_communication(member.result) for member in same),
        disturbed=any(Audit.disturbed_by(each.result.audit.checks) for each in same if each.result.audit),
        results=tuple(member.stored.folder.name for member in same),
        stored=tuple(member.stored for member in same),
    )


def _unshown(result: ExperimentResult, quantity: str) -> float | None:
    """Return the relative standard uncertainty of a figure that its restarts do not show; None where unknown."""
    if quantity == statistics.SPEED:
        return result.performance.draw_of_speed if result.performance else None
    own = result.budget.entries if quantity == statistics.ENERGY and result.budget else []
    return hypot(*(entry.standard_uncertainty for entry in own if entry.name != Budget.RESTARTS))


def _communication(result: ExperimentResult) -> float | None:
    found = [part for part in (result.work.marked if result.work else ()) if part.name == "communication"]
    if not found or not found[0].duration_s or not (command := result.config.command):
        return None
    return found[0].share_within if command.work.within else found[0].share


def _relative(point: SplitPoint, first: SplitPoint) -> SplitPoint:
    """Return a point with its ratios to the curve's first point."""
    speed_up, *_ = _ratio(point, first, statistics.SPEED)
    in_common = first.gpus / point.gpus
    ends = speed_up.interval and statistics.Interval(*(end * in_common for end in speed_up.interval))
    return replace(
        point,
        speed_up=speed_up,
        efficiency=statistics.Figure(speed_up.value * in_common, ends),
        energy_ratio=_ratio(point, first, statistics.ENERGY)[0] if point.j_per_token and first.j_per_token else None,
    )


def _ratio(over: SplitPoint, under: SplitPoint, quantity: str) -> tuple[statistics.Figure, str, float]:
    """Return the ratio of two splits' figures, how its interval was found, and p; 1 without an interval.

    A test whose ratio lies on the other side of 1 than the figures' is not of these figures.

    Source: `sessions.outcome`; of splits that were not measured in turns JCGM 100:2008 (GUM), 5.1.2: relative
    uncertainties of independent factors add as squares. What such splits share counts twice: too wide, if anything, as
    p is too large by the fewer degrees of freedom.
    """
    if over is under:
        return statistics.Figure(1.0), "", 1.0
    figures = [point.tokens_per_s if quantity == statistics.SPEED else point.j_per_token for point in (over, under)]
    more, less = (figure for figure in figures if figure)
    value, found = more.value / less.value, _tested(over, under, quantity)
    difference, method = found.difference, found.method
    if not difference or (difference.relative >= 0) != (value >= 1):
        if not (more.interval and less.interval):
            return statistics.Figure(value), INDEPENDENT, 1.0
        rooms = statistics.t_factor(inf) * sqrt(2) * statistics.BETWEEN_SESSIONS * (found.reason == ONE_SESSION)
        half = hypot(log(more.interval.high / more.value), log(less.interval.high / less.value), rooms)
        freedom, method = min(point.freedom(quantity) for point in (over, under)), INDEPENDENT
        difference = statistics.of_logarithm(log(value), half / statistics.t_factor(freedom), freedom)
    ends = statistics.Interval(*(1 + end for end in difference.interval))
    return statistics.Figure(1 + difference.relative, ends), method, difference.p_value


def _tested(over: SplitPoint, under: SplitPoint, quantity: str) -> Outcome:
    """Return the test of `compare`, where restarts make pairs, each with one of the other split, or share no session.

    A pair needs a place in its session: several results of one split there have none, and where one split has more
    restarts the pairs' ratio is not that of the figures shown.
    """
    session_of = sessions_among([*over.stored, *under.stored])
    first, second = (by_session(point.stored, quantity, session_of) for point in (under, over))
    counts = [{name: len(restarts) for name, restarts in sessions.items()} for sessions in (first, second)]
    alone = len(under.stored) == len(first) and len(over.stored) == len(second)
    in_turns = alone and counts[0] == counts[1] and not apart(under.stored, over.stored, session_of)
    known = unshown(under.stored, over.stored, quantity)
    return outcome(first, second, known=known) if in_turns or not first.keys() & second.keys() else Outcome()


def optimum(points: Sequence[SplitPoint], unit: str = "output tokens") -> Optimum | None:
    """Return the point with the fewest joules per token; None where energy was not measured."""
    costs = [(point.j_per_token, point) for point in points if point.j_per_token]
    costs.sort(key=lambda entry: entry[0].value)
    if len(costs) < 2:
        return Optimum(costs[0][1], costs[0][0].value, unit) if costs else None
    (least, best), *others = costs
    ratios = [(other, *_ratio(other, best, statistics.ENERGY)) for _, other in others]
    # Of many equal splits, the dearest by chance lies far from the cheapest by chance.
    p_values = zip(ratios, statistics.holm([p for *_, p in ratios]), strict=True)
    near = {other.split: ratio for (other, ratio, *_), p in p_values if p >= SIGNIFICANCE and other is not costs[1][1]}
    return Optimum(best, least.value, unit, *ratios[0][:3], near)
