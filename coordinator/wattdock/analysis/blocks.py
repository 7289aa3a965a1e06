"""Measured windows in blocks of about two seconds, for the budget: joules, work and temperature of each. Pure."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import inf, sqrt
from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.answers import DECLARED, Answers, draw_of, undeclared_answers
from wattdock.analysis.block_fit import CONTEXT, LEAST_BLOCKS, PROMPTS, SECONDS, Window, scatter_of
from wattdock.analysis.budget import Budget, budget
from wattdock.analysis.idle import over
from wattdock.analysis.occupancy import Instants, NoWindowError, step_ends, tokens_in
from wattdock.clock import NS_PER_S
from wattdock.metering import Span
from wattdock.values import all_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wattdock.analysis.measured import Measured
    from wattdock.analysis.pass_energy import WindowFigure
    from wattdock.records import PassRecord, RestartRecord

    Floats = NDArray[np.float64]

# Length of a block: a shorter one holds parts of prefills, and few changes of the counters.
BLOCK_S = 2.0
# How far a reading of temperature may lie from the instant that it stands for; they come once a second.
TEMPERATURE_REACH_S = 5.0


def measured_budget(measured: Measured) -> Budget | None:
    """Return the budget of the headline's windows; None without joules and tokens in every one of them."""
    restarts: dict[int, list[Window]] = {}
    answers = undeclared_answers(measured)
    for (restart, run_pass), figure in zip(measured.passes, measured.headline, strict=True):
        if not figure.measured_per_output_token_j:
            return None
        restarts.setdefault(restart.restart, []).append(window_of(measured, restart, run_pass, figure, answers))
    if not restarts:
        return None
    whole = measured.config.command is not None and measured.windows.headline == "drained"
    boards, limit_w, repeats = len(measured.used), measured.limit_w, _design_effects(measured)
    found = budget([*restarts.values()], boards=boards, limit_w=limit_w, whole=whole, repeats=repeats, answers=answers)
    return found.model_copy(update={"unit": measured.config.unit})


def draw_of_speed(measured: Measured) -> float | None:
    """Return the relative standard uncertainty of tokens per second by the list that all restarts send.

    No mix of work is corrected: tokens per second are those of the work that came. None where windows of one block do
    not tell.
    """
    repeated, alike = _design_effects(measured)
    if alike == 1:
        return 0.0
    parts: list[Floats] = []
    weights: list[float] = []
    for run_pass, figure in zip(measured.pass_records, measured.headline, strict=True):
        edges_ns, _ = _blocks(measured, run_pass, figure)
        seconds, tokens = np.diff(edges_ns) / NS_PER_S, tokens_in(run_pass, edges_ns)
        if len(seconds) < LEAST_BLOCKS or not tokens.sum():
            return None
        rates = tokens / seconds * seconds.sum() / tokens.sum()
        parts.append((rates - 1) * np.sqrt(seconds / seconds.mean()))
        weights.append(float(tokens.sum()))
    # What all restarts share shows in none of their differences.
    restarts = len({restart.restart for restart, _ in measured.passes})
    shared = (alike - 1) * restarts / max(1, restarts - 1)
    return sqrt(repeated * shared) * float(np.linalg.norm(scatter_of(parts) * weights)) / sum(weights)


def _design_effects(measured: Measured) -> tuple[float, float]:
    """Return by how much repeated prompts widen the variance of a window's mean, and beyond that of the mean of all.

    Source: n requests of which c have one of N prompts have Σc² ÷ n − n ÷ N times the variance of n prompts (Kish's
    design effect, less what draws without replacement take off).
    """
    prompts, lengths = measured.config.prompts, set[tuple[int | None, int | None]]()
    sent, lines = list[Counter[object]](), None
    for run_pass, figure in zip(measured.pass_records, measured.headline, strict=True):
        inside = [request for request in run_pass.requests if figure.holds(request.first_token_ns)]
        lengths.update((request.prompt_tokens, request.output_tokens) for request in inside)
        lines = run_pass.declared.lines
        keys = (draw_of(run_pass, request, synthetic=prompts.source == "synthetic") for request in inside)
        sent.append(Counter(key for key in keys if key is not None))
    # Random prompts of one length with answers of one length are the same work.
    is_one_work = prompts.source == "synthetic" and len(lengths) == 1 and None not in next(iter(lengths))
    of_all = sum(sent, Counter[object]())
    if measured.config.command or is_one_work or not (count := of_all.total()):
        return 1.0, 1.0
    own, shared = (
        sum(sum(n**2 for n in each.values()) - each.total() ** 2 / (lines.total if lines else inf) for each in counts)
        for counts in (sent, [of_all])
    )
    repeated = max(1.0, own / count)
    return repeated, 1 + max(0.0, shared - own) / count / repeated


def window_of(
    measured: Measured, restart: RestartRecord, run_pass: PassRecord, figure: WindowFigure, answers: Answers = DECLARED
) -> Window:
    """Return a window, which has joules and tokens, with its blocks; one block where instants do not tell more."""
    edges_ns, instants = _blocks(measured, run_pass, figure)
    work = _work(run_pass, instants, edges_ns) if instants else {}
    start_ns, end_ns = edges_ns[0], edges_ns[-1]
    blocks_j = all_known(measured.energy_of(restart, Span("block", *edges)).total_j for edges in pairwise(edges_ns))
    if not blocks_j:
        edges_ns, work, blocks_j = [start_ns, end_ns], {}, [figure.total_j or 0.0]
    return Window(
        total_j=figure.total_j or 0.0,
        output_tokens=figure.output_tokens or 0,
        timing_j=figure.timing_j or 0.0,
        lead_in_s=_lead_in_s(measured, restart, Span("lead-in", run_pass.span.start_ns, start_ns)),
        block_s=np.diff(edges_ns) / NS_PER_S,
        block_j=np.array(blocks_j),
        block_tokens=tokens_in(run_pass, edges_ns).astype(np.float64),
        block_c=_temperature_c(measured, restart, edges_ns),
        work=work,
        declared=_declared(measured, run_pass, answers) if instants else {},
    )


def _blocks(measured: Measured, run_pass: PassRecord, figure: WindowFigure) -> tuple[list[int], Instants | None]:
    """Return the edges of a window's blocks and the requests' instants; one block where these do not tell more."""
    start_ns, end_ns = figure.start_ns or run_pass.span.start_ns, figure.end_ns or run_pass.span.end_ns
    try:
        instants = Instants.of(run_pass)
        rounds = instants if measured.config.workload.has_rounds else None
        return _edges(run_pass, rounds, start_ns, end_ns), instants
    except NoWindowError:
        # Within a whole run, how a command begins is no scatter.
        return _edges(run_pass, None, start_ns, end_ns) if figure.window == "marked" else [start_ns, end_ns], None


def _lead_in_s(measured: Measured, restart: RestartRecord, before: Span) -> float:
    """Return for how long the GPUs worked before a window: a command first imports and loads, on cool boards."""
    if not measured.config.command:
        return before.duration_s
    gpus, name = (restart.gpus.get(uuid) for uuid in measured.used), "gpu_utilization_percent"
    return before.duration_s * min((over([(gpu, before)], name, np.mean) or 0.0 for gpu in gpus), default=0.0) / 100


def _edges(run_pass: PassRecord, rounds: Instants | None, start_ns: int, end_ns: int) -> list[int]:
    """Return the edges of about equal blocks: whole rounds, or whole steps, so that each holds its tokens' joules.

    Every block has a token.
    """
    inside_ns = rounds.submitted[rounds.round_starts()] if rounds else step_ends(run_pass, start_ns, end_ns)
    inside_ns = inside_ns[(inside_ns > start_ns) & (inside_ns < end_ns)]
    if not len(inside_ns):
        return [start_ns, end_ns]
    wanted_ns = np.linspace(start_ns, end_ns, max(1, round((end_ns - start_ns) / NS_PER_S / BLOCK_S)) + 1)[1:-1]
    nearest_ns = inside_ns[np.searchsorted((inside_ns[1:] + inside_ns[:-1]) / 2, wanted_ns)]
    edges_ns = [start_ns, *np.unique(nearest_ns).tolist(), end_ns]
    kept_ns = [start_ns]
    for edge_ns in edges_ns[1:-1]:
        if tokens_in(run_pass, [kept_ns[-1], edge_ns])[0] and tokens_in(run_pass, [edge_ns, end_ns])[0]:
            kept_ns.append(edge_ns)
    return [*kept_ns, end_ns]


def _work(run_pass: PassRecord, instants: Instants, edges_ns: Sequence[int]) -> dict[str, Floats]:
    """Return what the engine did in each block, by the requests' own instants.

    Prompt tokens count where a request's first token lies; contexts are the positions before each token but a
    request's first.
    """
    step_ns, count = run_pass.tokens.at_ns, len(run_pass.tokens.at_ns)
    requests = sorted(run_pass.requests, key=lambda request: request.submitted_ns)
    prompts = np.array([request.prompt_tokens or 0 for request in requests], dtype=np.float64)
    outputs = np.array([request.output_tokens or 0 for request in requests], dtype=np.float64)
    # The steps that gave each request its first token and its last. A context grows evenly over the steps between
    # these, not over time: when others end, steps get quicker.
    first, finished = (np.searchsorted(step_ns, at_ns) for at_ns in (instants.first, instants.finished))
    per_step = (outputs - 1) / np.maximum(finished - first, 1)
    # Each request is a line over the steps, added behind its first token and taken away behind its last.
    lines = np.zeros((2, count + 2))
    for step, sign in ((first + 1, 1), (finished + 1, -1)):
        np.add.at(lines[0], step, sign * per_step * (prompts - per_step * first))
        np.add.at(lines[1], step, sign * per_step**2)
    constant, rate = np.cumsum(lines, axis=1)[:, :count]
    by_step = {
        PROMPTS: np.bincount(first, prompts, minlength=count)[:count],
        CONTEXT: constant + rate * np.arange(count),
    }
    edges = np.searchsorted(step_ns, edges_ns, side="right")
    sums = {kind: np.diff(np.concatenate(([0.0], np.cumsum(amount)))[edges]) for kind, amount in by_step.items()}
    # An engine that does not tell how long prompts are gives zeros.
    return {kind: amounts for kind, amounts in sums.items() if amounts.any()} | {SECONDS: np.diff(edges_ns) / NS_PER_S}


def _declared(measured: Measured, run_pass: PassRecord, answers: Answers) -> dict[str, float]:
    """Return the amounts of work per output token in the long run, of the kinds that the settings or answers decide."""
    declared, rate_per_s = run_pass.declared, measured.config.workload.rate_per_s
    if not (answer := declared.output_tokens or answers.mean_tokens):
        return {}
    amounts = {PROMPTS: declared.prompt_tokens, CONTEXT: declared.context_tokens}
    # In an open loop, arrivals set the pace, not the engine.
    amounts[SECONDS] = 1 / rate_per_s if rate_per_s else declared.gap_s
    return {kind: amount / answer for kind, amount in {**amounts, **answers.amounts}.items() if amount}


def _temperature_c(measured: Measured, restart: RestartRecord, edges_ns: Sequence[int]) -> Floats:
    """Return the mean temperature of the GPUs used in the middle of each block; NaN where one of them is unknown."""
    middles_ns = (np.array(edges_ns[1:], dtype=np.float64) + np.array(edges_ns[:-1])) / 2
    of_gpus = []
    for uuid in measured.used:
        series = restart.gpus[uuid].series.get("temperature_c") if uuid in restart.gpus else None
        if series is None or not len(series.at_ns):
            return np.full(len(middles_ns), np.nan)
        nearest_ns = np.abs(series.at_ns[:, None] - middles_ns).min(axis=0)
        values = np.interp(middles_ns, series.at_ns, series.value)
        of_gpus.append(np.where(nearest_ns <= TEMPERATURE_REACH_S * NS_PER_S, values, np.nan))
    return np.mean(of_gpus, axis=0) if of_gpus else np.full(len(middles_ns), np.nan)
