"""Energy of parts of passes: windows by several definitions, prefill and decode. Pure."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import hypot
from typing import TYPE_CHECKING, Literal

import numpy as np

from wattdock.analysis.joules import ratio
from wattdock.analysis.occupancy import Instants, NoWindowError, is_scheduled, step_ends, tokens_in
from wattdock.analysis.pass_energy import WindowFigure
from wattdock.analysis.statistics import Interval
from wattdock.analysis.work_costs import NoCostsError, Work, costs, metered_work
from wattdock.clock import NS_PER_S
from wattdock.metering import Span
from wattdock.values import Stored, known_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock.analysis.measured import Measured
    from wattdock.analysis.work_costs import Costs
    from wattdock.config import ExperimentConfig
    from wattdock.records import PassRecord, RestartRecord

# Longest time from one submission to the next, in mean gaps: by how much a window may end before its run.
MOST_GAPS = 5.0
# Shortest steady state where a run has no declared window.
MIN_STEADY_S = 20.0
# Least share of a window that remains of it in whole steps: requests that come seldom leave pauses, not steps.
LEAST_KEPT = 0.9
WindowName = Literal["drained", "steady_state", "marked"]
PHASES = ("time between rounds", "prefill", "decode")
# Uncertainty of each span's ends (half a 95 % interval, in bins of energy): power may overshoot there, and the runner's
# instants are the CPU's. It is the same for every span.
EDGE95 = 0.1
MAX_RELATIVE_HALF = 0.1
# Largest share of decode's tokens that come during prefills; their energy is counted as prefill's.
MAX_MIXED_SHARE = 0.02


class Phases(Stored):
    """Prefill and decode energy of the measured passes; null with the reason where it cannot be told apart.

    Prefill lasts from a round's submission to the last of its first tokens, decode from there to its last token. The
    boundaries are instants that the runner recorded, without any added synchronisation. Energies of bins, each as long
    as the meter resolves, are regressed on the seconds of prefill, of decode and between rounds in them.

    Attributes:
        prefill_s, decode_s: Time of each over all rounds.
        prefill_ci95_j, decode_ci95_j: Ends of the 95 % interval.
        decode_tokens_in_prefill: Share of decode's tokens that came while other requests' prompts were computed.
    """

    prefill_j: float | None = None
    decode_j: float | None = None
    prefill_ci95_j: Interval | None = None
    decode_ci95_j: Interval | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    prefill_j_per_prompt_token: float | None = None
    decode_j_per_output_token: float | None = None
    decode_tokens_in_prefill: float | None = None
    reason: str | None = None


class WindowSummary(Stored):
    """Joules per output token by window definition.

    Attributes:
        headline: The definition of a result's headline figures, J/token, tokens/s and power: `steady_state` where
            requests overlap and every pass has one, else `drained`. Of a command: `marked` where spans were named that
            count, whether every run has them or not, else `drained`, the whole run.
        energy_per_output_token_j: Sum of joules ÷ sum of tokens, over all passes.
    """

    headline: WindowName
    energy_per_output_token_j: dict[str, float | None]
    passes: list[WindowFigure]

    def of_headline(self) -> list[WindowFigure]:
        """Return each pass's figure by the headline's definition, in order."""
        return [figure for figure in self.passes if figure.window == self.headline]


def drained(run_pass: PassRecord, config: ExperimentConfig) -> tuple[int, int]:  # noqa: ARG001
    """From just before the first request until the engine has drained after the last token."""
    return run_pass.span.start_ns, run_pass.span.end_ns


def steady_state(run_pass: PassRecord, config: ExperimentConfig) -> tuple[int, int]:
    """After the lead-in, while the engine is full and requests wait, for as long as `required_s` says at least.

    In an open loop, to the last arrival, and from a mean lifetime after the first at least. Of static batches, whole
    rounds; else whole steps, since the tokens of a step come at its end and its joules do not, unless pauses between
    steps leave less than `LEAST_KEPT` of it.
    """
    at, work = Instants.of(run_pass), config.workload
    lifetime_s = at.lifetime_ns / NS_PER_S
    lead_in_s, needed_s = required_s(config, lifetime_s)
    after_ns = int(at.submitted[0]) + round(lead_in_s * NS_PER_S)
    if work.has_rounds:
        start_ns, end_ns = at.rounds(after_ns)
    elif is_scheduled(run_pass):
        start_ns, end_ns = at.arriving(after_ns)
    else:
        start_ns, end_ns = at.full(work.batch_size, after_ns)
    if (length_s := (end_ns - start_ns) / NS_PER_S) < needed_s:
        lifetimes = f"{config.warmup.window_lifetimes:g} lifetimes of {lifetime_s:.2f} s"
        raise NoWindowError(f"{length_s:.1f} s of {needed_s:.1f} s ({lifetimes})")
    if work.has_rounds:
        return start_ns, end_ns
    ends_ns = step_ends(run_pass, start_ns, end_ns)
    if len(ends_ns) and ends_ns[-1] - ends_ns[0] >= LEAST_KEPT * (end_ns - start_ns):
        start_ns, end_ns = int(ends_ns[0]), int(ends_ns[-1])
    return start_ns, end_ns


def marked(run_pass: PassRecord, config: ExperimentConfig) -> tuple[int, int]:
    """From the begin of the first span that counts to the end of the last, as a command marked them."""
    within = config.command.work.within if config.command else None
    found = [part for part in run_pass.marked if part.name == within]
    spans = [span for part in found for span in part.spans]
    if found and not spans:
        raise NoWindowError(f"{within!r} was marked in more places than are told apart; mark larger parts")
    if not spans:
        names = ", ".join(part.name for part in run_pass.marked)
        but = f", but {names}: give one of these to --within" if names else ", nor any other: leave out --within"
        raise NoWindowError(f"no span {within!r} was marked{but}")
    return spans[0][0], spans[-1][1]


def counted_spans(measured: Measured) -> list[Span]:
    """Return the part of each pass that conditions and `net_j` are of: a command's spans that count, else the whole."""
    spans = [run_pass.span for run_pass in measured.pass_records]
    if measured.config.command and measured.config.command.work.within:
        for number, run_pass in enumerate(measured.pass_records):
            with suppress(NoWindowError):
                spans[number] = Span("marked", *marked(run_pass, measured.config))
    return spans


def required_s(config: ExperimentConfig, lifetime_s: float) -> tuple[float, float]:
    """Return how long the lead-in of a run and the window after it last at least, s.

    Args:
        lifetime_s: Mean time of a request from its submission to its last token.
    """
    warmup, asked_s = config.warmup, config.workload.min_duration_s
    least_s = asked_s if asked_s and warmup.profile == "lead-in" else MIN_STEADY_S
    return warmup.lead_in(lifetime_s), max(least_s, warmup.window_lifetimes * lifetime_s)


def is_long_enough(config: ExperimentConfig, *, elapsed_s: float, finished: int, in_flight_s: float) -> bool:
    """Return whether a run that goes on holds its lead-in and its window, as far as counts of requests tell.

    Args:
        elapsed_s: Since the run began.
        in_flight_s: Number of requests in flight, integrated over this time, s.

    Source: Little's law: the mean lifetime is the integral ÷ the requests that it is of.
    """
    work = config.workload
    if config.warmup.profile != "lead-in":
        return True
    if not finished:
        return False
    gap_s, lifetime_s = elapsed_s / finished, in_flight_s / finished
    # Rounds begin and end up to a long round off. A window of overlapping requests ends with the last submission, and
    # the lifetimes of those still in flight may raise the mean.
    slack_s = 2 * (gap_s * work.batch_size + lifetime_s) if work.has_rounds else MOST_GAPS * gap_s + lifetime_s / 2
    return elapsed_s >= sum(required_s(config, lifetime_s)) + slack_s


WINDOWS: dict[str, Callable[[PassRecord, ExperimentConfig], tuple[int, int]]] = {
    "drained": drained,
    "steady_state": steady_state,
    # Of commands alone.
    "marked": marked,
}


def windows(measured: Measured) -> WindowSummary:
    """Return every definition's figure for every pass, how far the definitions differ, and which is the headline's."""
    command, names = measured.config.command, ["drained", "steady_state"]
    if command:
        names[1:] = ["marked"] * bool(command.work.within)
    figures = [_figure(measured, name, *of_pass) for name in names for of_pass in measured.passes]
    per_token = dict[str, float | None]()
    for name in names:
        # Unknown where a pass has no such window, or no energy.
        of_window = [figure for figure in figures if figure.window == name]
        tokens = sum(figure.output_tokens or 0 for figure in of_window)
        per_token[name] = ratio(known_sum(figure.total_j for figure in of_window), tokens)
    steady = all(figure.output_tokens for figure in figures if figure.window == "steady_state")
    # Whole passes of rounds are steady without a lead-in, too.
    cut = measured.config.warmup.profile == "lead-in" or not measured.config.workload.has_rounds
    headline: WindowName = "steady_state" if cut and steady else "drained"
    if command:
        headline = "marked" if command.work.within else "drained"
    return WindowSummary(headline=headline, energy_per_output_token_j=per_token, passes=figures)


def _figure(measured: Measured, name: str, restart: RestartRecord, run_pass: PassRecord) -> WindowFigure:
    where = {"window": name, "restart": restart.restart, "pass_index": run_pass.index}
    try:
        start_ns, end_ns = WINDOWS[name](run_pass, measured.config)
        if end_ns <= start_ns:
            raise NoWindowError("it ends before it begins")
    except NoWindowError as error:
        return WindowFigure(**where, reason=str(error))
    span = Span(name, start_ns, end_ns)
    tokens = run_pass.output_tokens if name == "drained" else int(tokens_in(run_pass, [start_ns, end_ns])[0])
    joules = measured.energy_of(restart, span)
    return WindowFigure(
        **where,
        start_ns=start_ns,
        end_ns=end_ns,
        duration_s=span.duration_s,
        output_tokens=tokens,
        total_j=joules.total_j,
        timing_j=joules.timing_j,
        energy_per_output_token_j=ratio(joules.total_j, tokens),
        reason=joules.reason,
    )


@dataclass(frozen=True)
class _Round:
    """Requests that were submitted together: their prefill and decode, and tokens of decode within the prefill."""

    prefill: Span
    decode: Span
    mixed_tokens: int
    decode_tokens: int


def phases(measured: Measured) -> Phases:
    """Return prefill and decode energy over all passes, or why there is none."""
    passes = [(restart, run_pass, rounds_of(run_pass)) for restart, run_pass in measured.passes]
    if not measured.used or not passes:
        return Phases(reason="no pass was measured" if measured.used else "no GPU was used")
    if not all(rounds for _, _, rounds in passes):
        return Phases(reason="requests overlap: prefill and decode share the engine's steps")
    rounds = [part for _, _, of_pass in passes for part in of_pass]
    prefill_s = sum(part.prefill.duration_s for part in rounds)
    decode_s = sum(part.decode.duration_s for part in rounds)
    decode_tokens = sum(part.decode_tokens for part in rounds)
    mixed = sum(part.mixed_tokens for part in rounds) / max(1, decode_tokens)
    times = {"prefill_s": prefill_s, "decode_s": decode_s, "decode_tokens_in_prefill": mixed}
    try:
        if mixed > MAX_MIXED_SHARE:
            raise NoCostsError(
                f"{mixed:.1%} of decode's tokens came while prompts were computed (limit {MAX_MIXED_SHARE:.0%})"
            )
        metered = [metered_work(measured, restart, run_pass, _work(part)) for restart, run_pass, part in passes]
        fitted = costs(metered)
        prefill_j, prefill_ci95_j = _phase_joules(fitted, 1, prefill_s, len(rounds))
        decode_j, decode_ci95_j = _phase_joules(fitted, 2, decode_s, len(rounds))
    except NoCostsError as error:
        return Phases(**times, reason=str(error))
    prompt_tokens = known_sum(run_pass.prompt_tokens for _, run_pass, _ in passes)
    return Phases(
        **times,
        prefill_j=prefill_j,
        decode_j=decode_j,
        prefill_ci95_j=prefill_ci95_j,
        decode_ci95_j=decode_ci95_j,
        prefill_j_per_prompt_token=ratio(prefill_j, prompt_tokens),
        decode_j_per_output_token=ratio(decode_j, decode_tokens),
    )


def _work(rounds: Sequence[_Round]) -> Work:
    """Return the seconds of prefill and of decode as work of two kinds."""
    spans = [(span.start_ns, span.end_ns) for part in rounds for span in (part.prefill, part.decode)]
    start_ns, end_ns = np.array(spans, dtype=np.int64).T
    seconds = np.tile(np.eye(2), (len(rounds), 1)) * (end_ns - start_ns)[:, None] / NS_PER_S
    return Work(start_ns, end_ns, seconds)


def _phase_joules(fitted: Costs, phase: int, duration_s: float, rounds: int) -> tuple[float, Interval]:
    """Return joules of a phase and their 95 % interval; refuse what is too uncertain."""
    if np.isnan(fitted.values[phase]):
        raise NoCostsError(f"{PHASES[phase]}: none was reported")
    value_j, low_j, high_j = (float(ends[phase]) * duration_s for ends in (fitted.values, fitted.low, fitted.high))
    edges_j = EDGE95 * fitted.bin_s * rounds * float(fitted.values[phase])
    interval = Interval(max(value_j - hypot(value_j - low_j, edges_j), 0.0), value_j + hypot(high_j - value_j, edges_j))
    if max(value_j - interval.low, interval.high - value_j) > MAX_RELATIVE_HALF * value_j:
        ends = f"between {interval.low:.0f} and {interval.high:.0f} J"
        raise NoCostsError(f"{PHASES[phase]} is {value_j:.0f} J, 95 % {ends} (limit ± {MAX_RELATIVE_HALF:.0%})")
    return value_j, interval


def rounds_of(run_pass: PassRecord) -> list[_Round]:
    """Return the rounds of a pass; none where a request begins before all earlier ones have finished."""
    try:
        at = Instants.of(run_pass)
    except NoWindowError:
        return []
    rounds = [
        Instants(*columns) for columns in zip(*(np.split(column, at.round_starts()[1:]) for column in at), strict=True)
    ]
    if any(part.submitted[-1] > part.first.min() for part in rounds):
        return []
    found = []
    for part in rounds:
        begin_ns, boundary_ns, end_ns = int(part.submitted[0]), int(part.first.max()), int(part.finished.max())
        gained = np.cumsum(tokens_in(run_pass, [begin_ns, boundary_ns, end_ns]))
        # Each request's first token is prefill's own.
        decoded = np.maximum(0, gained - len(part.first)).tolist()
        found.append(_Round(Span("prefill", begin_ns, boundary_ns), Span("decode", boundary_ns, end_ns), *decoded))
    return found
