"""How well a model answered, and what its right answers cost: scores, J per item and J per correct answer. Pure.

Joules are those of a task's passes. Both items and restarts are samples: the interval is of other items of the kind and
of other restarts. For it alone, an item's joules are its share of its pass's. A prompt token costs between nothing and
as much as an output token; in that share a variance is convex, so largest at an end: the wider interval counts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from math import isnan, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.analysis.joules import Joules
from wattdock.analysis.statistics import LEAST_RESTARTS, Interval, ScoreDifference, t_factor, with_known
from wattdock.text import pluralize
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from wattdock.analysis.measured import Measured
    from wattdock.quality import Score
    from wattdock.records import Evaluation, PassRecord, RequestRecord, RestartRecord

    Floats = NDArray[np.float64]

# Hexadecimal digits that tell answers apart.
DIGITS = 8


class AnswerFigures(Stored):
    """Figures of the answers to some items, over all restarts.

    Attributes:
        name: "all", a task, or a task's category.
        items: How many different ones.
        score: Mean, from 0 to 1.
        score_error: Standard error of the score, over items and restarts; above 0 also where all are right.
        thought_tokens: Output tokens up to the end of the thoughts; null where that cannot be told.
        energy_j: Of the passes in which they were answered; null with the reason, as of a category.
        energy_per_correct_j: The same ÷ the sum of the scores.
        interval: 95 % interval of joules per correct answer.
        asked: Answers over all restarts; null, as the next two, in results that were made before it was counted.
        cut: Of these, how many reached `quality.max_output_tokens`.
        score_if_right: The score if each of those were right.
    """

    name: str
    items: int
    score: float
    score_error: float | None
    output_tokens: int
    thought_tokens: int | None
    energy_j: float | None = None
    energy_per_item_j: float | None = None
    energy_per_correct_j: float | None = None
    interval: Interval | None = None
    reason: str | None = None
    asked: int | None = None
    cut: int | None = None
    score_if_right: float | None = None

    @property
    def room(self) -> float:
        """By how much cut answers, if they were right, would raise the score."""
        return 0.0 if self.score_if_right is None else self.score_if_right - self.score

    @property
    def is_bound(self) -> bool:
        """Whether that is more than the score's standard error."""
        return self.room > (self.score_error or 0.0)

    @property
    def cut_text(self) -> str:
        """How many answers were cut, and what that makes of the score; empty without any."""
        if not self.cut:
            return ""
        bound = f": the score is a lower bound, at most {self.score_if_right:.3f} with room for all" * self.is_bound
        return f"{self.cut:,} of {self.asked:,} answers were cut at their limit of tokens{bound}"


class TaskFigures(AnswerFigures):
    """Figures of one task, and each item's score, to be compared item by item.

    Attributes:
        version: Changes with the items, and with what counts as right.
        few_shot: Solved examples before each question.
        rendered_sha256: Of its prompts, as tokenizer and chat template made ids of them; null where the engine does so.
        numbers: Of the items, in order.
        scores: Of each item, the mean over restarts.
        answers: Of each item, a hash of the first restart's answers; of given answers that were compared, of the score.
    """

    version: str
    few_shot: int
    rendered_sha256: str | None
    numbers: list[int]
    scores: list[float]
    answers: list[str]


class Quality(Stored):
    """What came of `quality:`.

    Attributes:
        overall: All tasks together; null where none has a score.
        categories: Parts of tasks; of older results with joules by share of output tokens, whatever prompts cost.
        failures: Why a task has no score, or not of every restart.
    """

    overall: AnswerFigures | None
    tasks: list[TaskFigures]
    categories: list[AnswerFigures]
    failures: list[str]

    def compared(self, other: Quality | None, margin: float) -> ScoreDifference | None:
        """Return how the other's scores differ from these, item by item; None where both share no two items.

        Args:
            margin: Fall of the score that does not matter, 0.02 for two points of a hundred.
        """
        sides = [
            {
                (task.name, task.version, task.few_shot, number): (score, answer)
                for task in (side.tasks if side else ())
                for number, score, answer in zip(task.numbers, task.scores, task.answers, strict=True)
            }
            for side in (self, other)
        ]
        keys = sides[0].keys() & sides[1].keys()
        shared, tasks = [(sides[0][key], sides[1][key]) for key in keys], {key[:-1] for key in keys}
        if len(shared) < 2:
            return None
        same = fmean(before == after for (_, before), (_, after) in shared)
        bounds = [task for task in self.tasks if task.is_bound and (task.name, task.version, task.few_shot) in tasks]
        room = sum(task.room * task.items for task in bounds) / len(shared)
        return ScoreDifference.of([after - before for (before, _), (after, _) in shared], same, margin, room)


@dataclass(frozen=True)
class _Items:
    """Items in all restarts.

    Attributes:
        table: Each item's score, joules by output tokens and by all tokens, output tokens, tokens of thought, NaN where
            unknown, and whether an answer of it was cut; shape (restarts, items, 6).
        timing: Relative standard uncertainty of the meter's joules.
    """

    categories: tuple[str, ...]
    table: Floats
    timing: float = 0.0
    reason: str | None = None

    @property
    def scores(self) -> Floats:
        """Scores of shape (restarts, items)."""
        return self.table[:, :, 0]

    def where(self, category: str) -> _Items:
        """Return the items of one category, without joules."""
        table = self.table[:, [at for at, name in enumerate(self.categories) if name == category]]
        table[:, :, 1:3] = np.nan
        return replace(self, table=table, reason="joules are known of a task's passes, with all its categories")

    def figures(self, name: str) -> dict[str, Any]:
        """Return the fields of `AnswerFigures`."""
        restarts, items, _ = self.table.shape
        correct, total_j, _, tokens, thoughts, cut = self.table.sum(axis=(0, 1)).tolist()
        score, known, interval, more = correct / self.scores.size, not isnan(total_j), None, _with_two(self.scores)
        reason = self.reason if not known else None if correct else "no answer is right"
        if not reason and restarts < LEAST_RESTARTS:
            reason = f"asked in {pluralize(restarts, 'restart')}, an interval needs {LEAST_RESTARTS}"
        elif not reason:
            half = max(half_width(self.scores, self.table[:, :, at], self.timing) for at in (1, 2))
            interval = Interval.around(total_j / correct, half)
        return {
            "name": name,
            "items": items,
            "score": score,
            "score_error": sqrt(_two_way((more - more.mean()) / more.size)[0]) if items > 1 else None,
            "output_tokens": int(tokens),
            "thought_tokens": None if isnan(thoughts) else int(thoughts),
            "energy_j": total_j if known else None,
            "energy_per_item_j": total_j / self.scores.size if known else None,
            "energy_per_correct_j": total_j / correct if known and correct else None,
            "interval": interval,
            "reason": reason,
            "asked": self.scores.size,
            "cut": int(cut),
            "score_if_right": float(np.maximum(self.scores, self.table[:, :, 5]).mean()),
        }


def half_width(scores: Floats, energy_j: Floats, timing: float) -> float:
    """Return how far the logarithm of joules per correct answer may be off, at 95 %.

    Args:
        scores, energy_j: Of each item in each restart; shape (restarts, items).
        timing: Relative standard uncertainty of the joules that all items share.

    Source: ratio of two means, by the delta method; clusters in two ways, Cameron, Gelbach and Miller, Journal of
    Business & Economic Statistics 29 (2011) 238. An item that is right and one that is wrong are added, as Agresti and
    Coull do (The American Statistician 52 (1998) 119): where all are right, more items would not all be.
    """
    more_j = np.repeat(energy_j.mean(axis=1, keepdims=True), 2, axis=1)
    scores, energy_j = _with_two(scores), np.hstack([energy_j, more_j])
    variance, freedom = _two_way(energy_j / energy_j.sum() - scores / scores.sum())
    error, freedom = with_known(sqrt(variance), freedom, timing)
    return t_factor(freedom) * error


def _with_two(scores: Floats) -> Floats:
    """Return scores with an item that is right and one that is wrong, see `half_width`."""
    return np.hstack([scores, np.tile([1.0, 0.0], (len(scores), 1))])


def _two_way(parts: Floats) -> tuple[float, float]:
    """Return the variance of the sum of an estimate's parts, and its degrees of freedom.

    Args:
        parts: What each item in each restart adds to the estimate's error; shape (restarts, items). The sum is 0.
    """
    restarts, items = parts.shape
    of_items = items / max(items - 1, 1) * float((parts.sum(axis=0) ** 2).sum())
    if restarts == 1:
        return of_items, items - 1
    of_restarts = restarts / (restarts - 1) * float((parts.sum(axis=1) ** 2).sum())
    # What neither explains is in both.
    rest = parts - parts.mean(axis=0) - parts.mean(axis=1, keepdims=True)
    both = restarts * items / ((restarts - 1) * max(items - 1, 1)) * float((rest**2).sum())
    variance = max(of_items + of_restarts - both, of_items, of_restarts)
    doubt = of_items**2 / max(items - 1, 1) + of_restarts**2 / (restarts - 1)
    return variance, variance**2 / doubt if doubt else float(items - 1)


def quality(measured: Measured) -> Quality | None:
    """Return what came of the questions of an experiment; None where none were asked."""
    if measured.config.quality is None:
        return None
    asked: dict[str, list[tuple[RestartRecord, Evaluation]]] = {}
    failures = []
    for restart in measured.restarts:
        for evaluation in restart.evaluations:
            if evaluation.failure:
                failures.append(f"{evaluation.task or 'quality'}, restart {restart.restart + 1}: {evaluation.failure}")
            elif evaluation.scores:
                others = asked.setdefault(evaluation.task, [])
                if others and _identity(others[0][1]) != _identity(evaluation):
                    failures.append(
                        f"{evaluation.task}, restart {restart.restart + 1}: its items or prompts have changed"
                    )
                else:
                    others.append((restart, evaluation))
    restarts = {restart.restart for restart in measured.restarts if restart.passes}
    tasks, categories, every = list[TaskFigures](), list[AnswerFigures](), list[_Items]()
    for task in dict.fromkeys(measured.config.quality.tasks):
        found = asked.get(task, [])
        missing = restarts - {restart.restart for restart, _ in found}
        if missing and not any(failure.startswith(f"{task},") for failure in failures):
            numbers = ", ".join(str(number + 1) for number in sorted(missing))
            failures.append(f"{task}: not asked in restart {numbers}, whose runner ended before")
        if found:
            items = _items(measured, found)
            first, passes = found[0][1], _numbered(found[0][1])
            figures = TaskFigures(
                **items.figures(task),
                version=first.version,
                few_shot=first.few_shot,
                rendered_sha256=next((run_pass.rendered_sha256 for run_pass in first.passes), None),
                numbers=[score.item for score in first.scores],
                scores=items.scores.mean(axis=0).tolist(),
                answers=[_hash(passes, score) for score in first.scores],
            )
            tasks.append(figures)
            of_task = dict.fromkeys(items.categories)
            parts = of_task if len(of_task) > 1 else ()
            categories += [AnswerFigures(**items.where(name).figures(f"{task}: {name}")) for name in parts]
            every.append(items)
    return Quality(overall=_overall(every), tasks=tasks, categories=categories, failures=failures)


def _identity(evaluation: Evaluation) -> tuple[object, ...]:
    """Return what all restarts were asked equally, so that item by item they may be put side by side."""
    prompts = [run_pass.rendered_sha256 for run_pass in evaluation.passes]
    return evaluation.version, evaluation.few_shot, [score.item for score in evaluation.scores], prompts


def _overall(every: Sequence[_Items]) -> AnswerFigures | None:
    """Return the figures of all tasks that were asked equally often."""
    if not every or len({len(items.scores) for items in every}) > 1:
        return None
    reason = next(filter(None, (items.reason for items in every)), None)
    table = np.concatenate([items.table for items in every], axis=1)
    return AnswerFigures(**_Items((), table, max(items.timing for items in every), reason).figures("all"))


def _items(measured: Measured, found: Sequence[tuple[RestartRecord, Evaluation]]) -> _Items:
    """Return the items of one task with their joules."""
    rows, joules, spec = list[list[tuple[float, ...]]](), list[Joules](), measured.config.quality
    assert spec
    most = spec.max_output_tokens
    for restart, evaluation in found:
        passes = _numbered(evaluation)
        rates: dict[int, Floats] = {}
        for number, run_pass in passes.items():
            part = measured.energy_of(restart, run_pass.span)
            joules.append(part)
            total_j = np.nan if part.total_j is None or run_pass.lease_fault else part.total_j
            rates[number] = total_j / sum(map(_amounts, run_pass.requests), np.zeros(2))
        row = list[tuple[float, ...]]()
        for score in evaluation.scores:
            requests = [(rates[number], passes[number].requests[at]) for number, at in score.requests]
            tokens = sum(request.output_tokens or 0 for _, request in requests)
            energy_j = sum((rate * _amounts(request) for rate, request in requests), np.zeros(2))
            thoughts = np.nan if score.thought_tokens is None else score.thought_tokens
            # A task's own shorter limit cuts nothing. Given texts have no limit, and no reason why they ended.
            limits = [request.max_output_tokens or most for _, request in requests if request.finish_reason == "length"]
            cut = max(limits, default=0) >= most
            row.append((score.score, *energy_j.tolist(), tokens, thoughts, cut))
        rows.append(row)
    faults = (run_pass.lease_fault for _, evaluation in found for run_pass in evaluation.passes)
    total = Joules.of_all(joules)
    return _Items(
        tuple(score.category for score in found[0][1].scores),
        np.array(rows, dtype=np.float64),
        timing=total.timing_j / total.total_j if total.timing_j and total.total_j else 0.0,
        reason=next((reason for reason in (total.reason, *faults) if reason), None),
    )


def _amounts(request: RequestRecord) -> Floats:
    """Return output tokens, of which an answer without any counts as one, and with them the prompt's computed ones."""
    answer = request.output_tokens or 1
    return np.array([answer, answer + (request.prompt_tokens or 0) - (request.cached_prompt_tokens or 0)], float)


def _numbered(evaluation: Evaluation) -> dict[int, PassRecord]:
    """Return the passes by the numbers that scores name them by."""
    return {-1 - run_pass.index: run_pass for run_pass in evaluation.passes}


def _hash(passes: Mapping[int, PassRecord], score: Score) -> str:
    texts = (passes[number].requests[at].text for number, at in score.requests)
    told = "\0".join(str(score.score) if text is None else text for text in texts)
    return hashlib.sha256(told.encode()).hexdigest()[:DIGITS]
