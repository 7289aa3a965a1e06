"""What a task is, what it asks of an engine, and what it finds. Plain values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

# What ends a model's thoughts, and what begins them, where its template marks them.
THOUGHTS_BEGIN, THOUGHTS_END = "<think>", "</think>"


class Prompt(NamedTuple):
    """What an engine is sent for one answer: a text, or the turns of a chat, each its role and its text."""

    content: str | tuple[tuple[str, str], ...]
    max_output_tokens: int


class Answer(NamedTuple):
    """What an engine answered.

    Attributes:
        text: All of it, thoughts included.
        request: Where its request stands in the evaluation's records: the pass, and the request in it.
    """

    text: str
    request: tuple[int, int] = (0, 0)

    @property
    def said(self) -> str:
        """The answer behind the thoughts; empty where it ended within them."""
        _, end, said = self.text.rpartition(THOUGHTS_END)
        return said if end or not self.text.lstrip().startswith(THOUGHTS_BEGIN) else ""


class Likelihood(NamedTuple):
    """How likely a text is after another.

    Attributes:
        logarithm: Natural logarithm of its probability.
        is_greedy: Whether greedy decoding would say it.
        request: As in `Answer`.
    """

    logarithm: float
    is_greedy: bool
    request: tuple[int, int] = (0, 0)


def with_marks(texts: Sequence[str | None], ended: Sequence[bool]) -> list[str | None]:
    """Return answers to one chat template, with the beginning of thoughts where the template itself wrote it.

    It did where more answers have the thoughts' end alone than ended by themselves without one; then an answer that has
    neither was cut within its thoughts. Else an end alone is a stray one.

    Args:
        ended: Whether the model ended each answer by itself.
    """
    alone = sum(
        THOUGHTS_END in text and THOUGHTS_BEGIN not in text.partition(THOUGHTS_END)[0] for text in texts if text
    )
    opened = alone > sum(
        by_itself and THOUGHTS_END not in (text or "") for text, by_itself in zip(texts, ended, strict=True)
    )
    return [
        THOUGHTS_BEGIN + text if opened and text and not text.lstrip().startswith(THOUGHTS_BEGIN) else text
        for text in texts
    ]


def thought_tokens(text: str, ids: Sequence[int], tokens: int, end_id: int | None) -> int | None:
    """Return how many output tokens were thoughts, their end included; None where the end is no token of its own.

    Args:
        tokens: All that the engine generated.
        end_id: The id of `THOUGHTS_END`; None where it is unknown.
    """
    if end_id in ids:
        return len(ids) - ids[::-1].index(end_id)
    if THOUGHTS_END in text:
        return None
    return tokens if text.lstrip().startswith(THOUGHTS_BEGIN) else 0


@dataclass(frozen=True)
class Score:
    """What one item came to.

    Attributes:
        item: The item's number within its task.
        score: From 0, wrong, to 1, right.
        requests: The requests that it took, as in `Answer`.
        thought_tokens: Output tokens up to the end of the thoughts; None where that cannot be told.
    """

    item: int
    category: str
    score: float
    requests: tuple[tuple[int, int], ...] = ()
    thought_tokens: int | None = 0


class Engine(Protocol):
    """A loaded model that answers."""

    def generate(self, prompts: Sequence[Prompt], stop: Sequence[str] = ()) -> list[Answer]:
        """Return an answer to each prompt; an answer ends before any of the texts in `stop`."""

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """Return how likely each continuation is after its context.

        Raises:
            ConfigError: The engine does not tell.
        """

    def succeeds(self, program: str) -> bool:
        """Whether a Python program ends well, run where it can do no harm."""


@dataclass(frozen=True)
class Task(ABC):
    """Items of one kind.

    Attributes:
        version: Changes with the items and with what counts as right.
        few_shot: Solved examples before each question.
        items: How many are asked.
        runs_code: Whether programs that the model wrote are run.
    """

    name: str
    version: str
    few_shot: int
    items: int
    runs_code: bool

    @abstractmethod
    def evaluate(self, engine: Engine) -> list[Score]:
        """Ask the engine every item, and score its answers.

        Raises:
            ConfigError: The task cannot be asked, or is broken.
        """
