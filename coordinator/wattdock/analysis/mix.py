"""Work sent against work declared: how many prompt tokens came with each output token where a figure counts. Pure."""

from __future__ import annotations

from math import hypot
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from wattdock.values import Stored, known_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wattdock.analysis.windows import WindowFigure, WindowSummary
    from wattdock.config import ExperimentConfig
    from wattdock.records import PassRecord, RequestRecord, RestartRecord

QUANTILES = (0.0, 0.5, 0.9, 1.0)


class PassMix(Stored):
    """Work of one pass in the headline's window, see `energy.windows`, and what was declared.

    Attributes:
        requests: Requests whose first token came in the window; their prompts count in it.
        prompt_tokens: Of these; null where the engine does not tell.
        output_tokens: Generated in the window.
        prompt_lengths, output_lengths: Least, median, 90th percentile and largest of these requests, in tokens.
        declared_prompt_tokens, declared_output_tokens: Means per request; null where they are not declared, as of
            answers that may end before their limit.
        difference: (Prompt tokens ÷ output tokens) ÷ the declared ratio − 1; null where that is not declared.
        difference_error: Its standard error, from how the lengths of the requests differ and the window cuts them.
        unlike: Requests of the whole pass that were not what was to be sent, by what differed; null where unknown.
        ended_early: Answers of the whole pass that ended before their limit.
        aborted: Requests of the whole pass that the engine gave up.
        short_again: Answers shorter than a declared plain length, after the first requests in flight.
        repeated_prompts: Requests of the whole pass whose prompt, by its ids, an earlier one had; null where unknown.
        drawn: Each restart drew its own prompts.
    """

    restart: int
    pass_index: int = Field(alias="pass")
    requests: int
    prompt_tokens: int | None = None
    output_tokens: int
    prompt_lengths: list[float] | None = None
    output_lengths: list[float] | None = None
    declared_prompt_tokens: float | None = None
    declared_output_tokens: float | None = None
    difference: float | None = None
    difference_error: float | None = None
    unlike: dict[str, int] | None = None
    ended_early: int = 0
    aborted: int = 0
    short_again: int = 0
    repeated_prompts: int | None = None
    drawn: bool = False

    @property
    def ratio(self) -> float | None:
        """Prompt tokens per output token, as sent."""
        return self.prompt_tokens / self.output_tokens if self.prompt_tokens and self.output_tokens else None

    @property
    def declared_ratio(self) -> float | None:
        """Prompt tokens per output token, as declared."""
        prompt, output = self.declared_prompt_tokens, self.declared_output_tokens
        return prompt / output if prompt and output else None


def mixes(restarts: Sequence[RestartRecord], windows: WindowSummary | None, config: ExperimentConfig) -> list[PassMix]:
    """Return the work of each pass, in order.

    Args:
        windows: Of the passes; None without any pass.
    """
    figures = {(figure.restart, figure.pass_index): figure for figure in (windows.of_headline() if windows else ())}
    return [
        _mix(restart, measured, figures[restart.restart, measured.index], config)
        for restart in restarts
        for measured in restart.passes
    ]


def mean_difference(passes: Sequence[PassMix]) -> tuple[float, float] | None:
    """Return the difference over all passes, weighted by output tokens, and its standard error.

    None where a pass has none.
    """
    known = [(each.difference, each.difference_error, each.output_tokens) for each in passes]
    if not known or any(difference is None or error is None for difference, error, _ in known):
        return None
    total = sum(tokens for *_, tokens in known)
    parts = [((difference or 0.0) * tokens, (error or 0.0) * tokens) for difference, error, tokens in known]
    return sum(part for part, _ in parts) / total, hypot(*(error for _, error in parts)) / total


def _mix(restart: RestartRecord, measured: PassRecord, figure: WindowFigure, config: ExperimentConfig) -> PassMix:
    work, declared = config.total_workload, measured.declared_work(config)
    inside = [request for request in measured.requests if _begins_in(request, figure)]
    prompts = [request.prompt_tokens for request in inside]
    answers = [request.output_tokens or 0 for request in inside]
    mix = PassMix(
        restart=restart.restart,
        pass_index=measured.index,
        requests=len(inside),
        prompt_tokens=known_sum(prompts),
        output_tokens=figure.output_tokens or 0,
        prompt_lengths=_quantiles(np.array(prompts)) if inside and None not in prompts else None,
        output_lengths=_quantiles(np.array(answers)) if inside else None,
        declared_prompt_tokens=declared.prompt_tokens,
        declared_output_tokens=declared.output_tokens,
        unlike=declared.unlike if measured.declared else None,
        ended_early=sum(_ended_early(request) for request in measured.requests),
        aborted=sum(request.finish_reason == "abort" for request in measured.requests),
        short_again=sum(
            request.index >= work.batch_size
            and request.finish_reason != "stop"
            and (request.output_tokens or 0) < (request.max_output_tokens or work.output_lengths.min)
            for request in measured.requests
        ),
        repeated_prompts=measured.repeated_prompts,
        drawn=declared.drawn,
    )
    if mix.ratio is None or mix.declared_ratio is None:
        return mix
    error = _relative_error(measured, figure, mix.ratio)
    return mix.model_copy(update={"difference": mix.ratio / mix.declared_ratio - 1, "difference_error": error})


def _begins_in(request: RequestRecord, figure: WindowFigure) -> bool:
    """Whether the request's first token came in the window; the whole pass is a window of all requests."""
    if figure.window == "drained":
        return True
    first_ns, start_ns, end_ns = request.first_token_ns, figure.start_ns, figure.end_ns
    return first_ns is not None and start_ns is not None and end_ns is not None and start_ns < first_ns <= end_ns


def _ended_early(request: RequestRecord) -> bool:
    limit = request.max_output_tokens
    return request.finish_reason == "stop" and limit is not None and (request.output_tokens or 0) < limit


def _relative_error(measured: PassRecord, figure: WindowFigure, ratio: float) -> float:
    """Return the standard error of a ratio of sums over requests, relative to it.

    The window holds a part of the requests that it cuts: a prompt where the first token lies in it, and of the answer
    what came in it, evenly spread from the first token to the last.
    Source: the ratio estimator's standard error, from residuals (Cochran, Sampling Techniques, 1977, section 6.3).
    """
    rows = [
        (request.first_token_ns or 0, request.finished_ns or 0, request.prompt_tokens or 0, request.output_tokens or 0)
        for request in measured.requests
    ]
    first, last, prompts, answers = np.array(rows, dtype=np.float64).T
    if figure.window != "drained":
        start_ns, end_ns = float(figure.start_ns or 0), float(figure.end_ns or 0)
        inside = np.clip(last, start_ns, end_ns) - np.clip(first, start_ns, end_ns)
        answers = answers * inside / np.maximum(last - first, 1.0)
        prompts = np.where((start_ns < first) & (first <= end_ns), prompts, 0.0)
    residuals = prompts - ratio * answers
    return float(np.sqrt(residuals @ residuals) / max(prompts.sum(), 1.0))


def _quantiles(tokens: NDArray[np.int64]) -> list[float]:
    return [float(value) for value in np.quantile(tokens, QUANTILES)]
