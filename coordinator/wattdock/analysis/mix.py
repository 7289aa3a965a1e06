"""Work sent against work declared: answers and prompts of the requests where a figure counts. Pure."""

from __future__ import annotations

from collections import Counter
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field, NonNegativeInt

from wattdock.records import passes
from wattdock.values import Stored, known_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis.measured import Measured
    from wattdock.records import RequestRecord


class PassMix(Stored):
    """Work of one pass in the headline's window, see `energy.windows`, and what was declared.

    Attributes:
        answer_tokens: Of the requests whose first token came in the window: whole answers, also where the window cuts
            them.
        declared_answer_tokens: What these answers were to have; null where no length of answers is declared. A request
            of a staggered start counts with the declared mean.
        draw_difference: (Prompt tokens of these requests ÷ tokens generated in the window) ÷ the long-run ratio − 1:
            what the draw, the list's place and the window's ends make; null where no ratio is declared.
        draw_chance: Standard deviation of `draw_difference` where requests are drawn independently, by how these
            requests' lengths differ and by how many are cut at the window's ends.
        mismatches: Requests of the whole pass that were not what was to be sent, by what differed.
        texts: Prompts of text, whose ids only the runner knows.
        ended_early, aborted: Answers of the whole pass that the model, or the engine, ended before their limit.
        repeated_prompts: Requests of the whole pass whose prompt, by its ids, an earlier one had.
        lines, places: Which lines of a file the pass goes through (first, in how many requests, of how many), and the
            indexes of the first and the last request whose first token came in the window; null where none is known.
    """

    restart: int
    pass_index: int = Field(alias="pass")
    answer_tokens: int = 0
    declared_answer_tokens: float | None = None
    draw_difference: float | None = None
    draw_chance: float = 0.0
    mismatches: dict[str, int]
    texts: int = 0
    ended_early: int = 0
    aborted: int = 0
    repeated_prompts: int = 0
    lines: passes.Lines | None = None
    places: tuple[NonNegativeInt, NonNegativeInt] | None = None

    @property
    def indexes(self) -> range:
        """Indexes of the requests in the window."""
        return range(self.places[0], self.places[1] + 1) if self.places else range(0)


def mixes(measured: Measured) -> list[PassMix]:
    """Return the work of each pass, in order."""
    found, workload = [], measured.config.workload
    for (restart, run_pass), figure in zip(measured.passes, measured.headline, strict=True):
        requests, declared = run_pass.requests, run_pass.declared
        inside = [request for request in requests if figure.holds(request.first_token_ns)]
        stopped = [request for request in requests if request.finish_reason == "stop"]
        mean = declared.output_tokens
        limits = [mean if part.index < declared.staggered else part.max_output_tokens or mean for part in inside]
        prompt_tokens = known_sum(request.prompt_tokens for request in inside)
        cut = 0 if workload.has_rounds or figure.window == "drained" else workload.batch_size
        long_run = declared.prompt_tokens / mean if declared.prompt_tokens and mean else None
        sent = prompt_tokens / figure.output_tokens if prompt_tokens and figure.output_tokens else None
        found.append(
            PassMix(
                restart=restart.restart,
                pass_index=run_pass.index,
                answer_tokens=sum(request.output_tokens or 0 for request in inside),
                declared_answer_tokens=None if mean is None else sum(limit or 0.0 for limit in limits),
                draw_difference=sent / long_run - 1 if sent and long_run else None,
                draw_chance=_chance(inside, cut),
                mismatches=declared.mismatches,
                texts=declared.texts,
                ended_early=sum((part.output_tokens or 0) < (part.max_output_tokens or 0) for part in stopped),
                aborted=sum(request.finish_reason == "abort" for request in requests),
                repeated_prompts=run_pass.repeated_prompts,
                lines=declared.lines,
                places=(min(indexes), max(indexes)) if (indexes := [part.index for part in inside]) else None,
            )
        )
    return found


def _chance(inside: Sequence[RequestRecord], cut: int) -> float:
    """Return the relative standard deviation of the prompt tokens ÷ output tokens of requests drawn independently.

    Requests with the same prompt are one draw.

    Args:
        cut: Number of answers that each of the window's ends cuts.

    Source: renewal theory. What is left of an answer of o tokens at any instant has the mean E[o²] ÷ 2 E[o] and the
    mean square E[o³] ÷ 3 E[o].
    """
    lengths = np.array([(request.prompt_tokens or 0, request.output_tokens or 0) for request in inside], dtype=float)
    if not len(lengths) or not lengths.mean(axis=0).all():
        return 0.0
    variances, answers = (lengths.std(axis=0) / lengths.mean(axis=0)) ** 2, lengths[:, 1] / lengths[:, 1].mean()
    draws = Counter(
        position if request.prompt_hash is None else request.prompt_hash for position, request in enumerate(inside)
    )
    same = sum(count**2 for count in draws.values()) / len(inside) ** 2
    left = float(np.mean(answers**3) / 3 - (np.mean(answers**2) / 2) ** 2)
    return sqrt(float(variances.sum()) * same + 2 * min(cut, len(lengths)) * left / len(lengths) ** 2)
