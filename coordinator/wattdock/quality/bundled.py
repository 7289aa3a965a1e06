"""The tasks that come with wattdock: questions of our own making, and what counts as right."""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
import re
from dataclasses import dataclass
from importlib.resources import files
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from wattdock.errors import ConfigError
from wattdock.quality.task import Prompt, Score, Task
from wattdock.text import json_text, strict_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock.config import ExperimentConfig
    from wattdock.quality.task import Engine

BLOCK = re.compile(r"```[a-zA-Z0-9]*\n(.*?)```", re.DOTALL)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
# Most words of an answer that tells a fact: a sentence or two. Questions, which hold the fact, have 80 words and more.
MOST_WORDS = 30


@dataclass(frozen=True)
class Question:
    """One line of questions.jsonl.

    Attributes:
        check: A key of `CHECKS`, or "code" for a program that is run with the lines `value` after it.
        solution: A right answer.
    """

    task: str
    category: str
    prompt: str
    check: str
    value: Any
    solution: str

    def is_right(self, answer: str, engine: Engine) -> bool:
        """Whether an answer is right."""
        if self.check != "code":
            return CHECKS[self.check](answer.strip(), self.value)
        blocks = BLOCK.findall(answer) or [answer]
        return engine.succeeds(f"{blocks[0]}\n{self.value}\n")


@dataclass(frozen=True)
class BundledTask(Task):
    """A task of questions.jsonl, of which the `chosen` numbers are asked; the last are the examples of `few_shot`."""

    questions: Sequence[Question]
    chosen: Sequence[int]
    chat: bool
    max_output_tokens: int

    @classmethod
    def of(cls, name: str, config: ExperimentConfig) -> BundledTask:
        """Return a task as `quality:` asks for it.

        Raises:
            ConfigError: The examples would leave no question.
        """
        spec, of_task = config.quality, questions()[name]
        assert spec
        shots = spec.few_shot or 0
        if shots >= len(of_task):
            raise ConfigError(f"quality.few_shot: {shots} leaves none of the {len(of_task)} items of {name} to ask")
        chosen = drawn(len(of_task) - shots, spec.limit, spec.seed)
        return cls(
            name=name,
            version=hashlib.sha256(repr(of_task).encode()).hexdigest()[:8],
            few_shot=shots,
            items=len(chosen),
            runs_code=any(question.check == "code" for question in of_task),
            questions=of_task,
            chosen=chosen,
            chat=spec.chat,
            max_output_tokens=spec.max_output_tokens,
        )

    def evaluate(self, engine: Engine) -> list[Score]:
        """Ask the engine every item, and score its answers."""
        asked = [self.questions[number] for number in self.chosen]
        # Without a template, a model goes on with the next question.
        stop = () if self.chat else ("\nQuestion:",)
        answers = engine.generate([Prompt(self._content(each), self.max_output_tokens) for each in asked], stop)
        return [
            Score(number, each.category, float(each.is_right(answer.said, engine)), (answer.request,))
            for number, each, answer in zip(self.chosen, asked, answers, strict=True)
        ]

    def _content(self, asked: Question) -> str | tuple[tuple[str, str], ...]:
        shots = self.questions[len(self.questions) - self.few_shot :]
        if self.chat and not shots:
            # A model without a template takes text as it is.
            return asked.prompt
        if self.chat:
            solved = ((("user", shot.prompt), ("assistant", shot.solution)) for shot in shots)
            return (*(turn for turns in solved for turn in turns), ("user", asked.prompt))
        solved_texts = [f"Question: {shot.prompt}\nAnswer: {shot.solution}\n\n" for shot in shots]
        return "".join([*solved_texts, f"Question: {asked.prompt}\nAnswer:"])


@functools.cache
def questions() -> dict[str, tuple[Question, ...]]:
    """Return the questions of each task."""
    lines = (files("wattdock.quality") / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    found = (Question(**strict_json(line)[0]) for line in lines)
    return {task: tuple(each) for task, each in itertools.groupby(found, attrgetter("task"))}


def drawn(count: int, limit: int | None, seed: int) -> list[int]:
    """Return which of so many items are asked, in order; equal arguments give equal items."""
    return sorted(random.Random(seed).sample(range(count), min(limit or count, count)))


def _is_number(answer: str, value: float) -> bool:
    found = NUMBER.findall(answer)
    return bool(found) and float(found[-1].replace(",", "")) == value


def _is_json(answer: str, value: Any) -> bool:
    text = (BLOCK.findall(answer) or [answer])[0].strip()
    try:
        found, length = strict_json(text)
    except ValueError:
        return False
    return length == len(text) and json_text(found) == json_text(value)


def _is_between(answer: str, ends: Sequence[str]) -> bool:
    words = re.findall(r"\w+", answer.lower())
    return bool(words) and "\n" not in answer and [words[0], words[-1]] == list(ends)


CHECKS: dict[str, Callable[[str, Any], bool]] = {
    # The last number counts: models write their way to it first.
    "number": _is_number,
    "told": lambda answer, word: (
        len(answer.split()) <= MOST_WORDS and re.search(rf"\b{re.escape(word)}\b", answer, re.IGNORECASE) is not None
    ),
    "exactly": lambda answer, text: answer.strip("\"'.") == text,
    "words": lambda answer, count: len(answer.split()) == count,
    "lines": lambda answer, count: len([line for line in answer.splitlines() if line.strip()]) == count,
    "lower": lambda answer, _: answer == answer.lower() and len(answer.split()) > 1,
    "json": _is_json,
    "between": _is_between,
}
