"""Windows of passes by several definitions. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from wattdock.analysis.occupancy import Instants, NoWindowError, balanced, is_scheduled, step_ends
from wattdock.analysis.pass_energy import AS_MEASURED, WindowFigure
from wattdock.clock import NS_PER_S
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.config import ExperimentConfig
    from wattdock.records import PassRecord

# Longest time from one submission to the next, in mean gaps: by how much a window may end before its run.
MOST_GAPS = 5.0
# Shortest steady state where a run has no declared window.
MIN_STEADY_S = 20.0
# Least share of a window that remains of it in whole steps: requests that come seldom leave pauses, not steps.
LEAST_KEPT = 0.9
WindowName = Literal["drained", "steady_state", "marked"]


class WindowSummary(Stored):
    """Joules per output token by window definition.

    Attributes:
        headline: The definition of a result's headline figures, J/token, tokens/s and power: `steady_state` where
            requests overlap and every pass has one, else `drained`. Of a command: `marked` where spans were named that
            count, whether every run has them or not, else `drained`, the whole run.
        measured_per_output_token_j: Sum of joules ÷ sum of tokens, over all passes.
    """

    headline: WindowName
    measured_per_output_token_j: Annotated[dict[str, float | None], AS_MEASURED]
    passes: list[WindowFigure]

    def of_headline(self) -> list[WindowFigure]:
        """Return each pass's figure by the headline's definition, in order."""
        return [figure for figure in self.passes if figure.window == self.headline]


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
        end_ns = int(ends_ns[-1])
        latest_ns = min(ends_ns[0] + at.lifetime_ns, end_ns - needed_s * NS_PER_S)
        start_ns = balanced(run_pass, ends_ns[ends_ns <= max(ends_ns[0], latest_ns)], end_ns)
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
    # Rounds begin and end up to a long round off. A window of overlapping requests starts up to a lifetime late, and
    # ends with the last submission, in lock-step a lifetime early.
    round_s = gap_s * work.batch_size + lifetime_s
    slack_s = 2 * round_s if work.has_rounds else lifetime_s + max(MOST_GAPS * gap_s, lifetime_s)
    return elapsed_s >= sum(required_s(config, lifetime_s)) + slack_s


WINDOWS: dict[str, Callable[[PassRecord, ExperimentConfig], tuple[int, int]]] = {
    # From just before the first request until the engine has drained after the last token.
    "drained": lambda run_pass, _: (run_pass.span.start_ns, run_pass.span.end_ns),
    "steady_state": steady_state,
    # Of commands alone.
    "marked": marked,
}
