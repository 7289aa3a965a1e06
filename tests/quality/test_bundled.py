"""The bundled questions: each has a right answer, and none is right for another's."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from make.machine import experiment
from refused import raises
from seams.quality import questions

from wattdock.errors import ConfigError
from wattdock.quality import Answer, Likelihood, Prompt, Task, tasks_of, thought_tokens, with_marks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VERSIONS = {"arithmetic": "a61be6c2", "retrieval": "bd3cab0d", "instructions": "723850b8", "code": "097fe2c3"}
QUESTIONS = {each.prompt: each for task in questions().values() for each in task}


class KnowingEngine:
    """Answers with each question's solution, told by `says`."""

    def __init__(self, says: Callable[[str], str] = str) -> None:
        self.says, self.asked, self.stop = says, list[Prompt](), tuple[str, ...]()

    def generate(self, prompts: Sequence[Prompt], stop: Sequence[str] = ()) -> list[Answer]:
        self.asked, self.stop = list(prompts), tuple(stop)
        texts = [each.content if isinstance(each.content, str) else each.content[-1][1] for each in prompts]
        last = [text.rpartition("Question: ")[2].removesuffix("\nAnswer:") if stop else text for text in texts]
        return [Answer(self.says(QUESTIONS[text].solution), (0, at)) for at, text in enumerate(last)]

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        raise NotImplementedError

    def succeeds(self, program: str) -> bool:
        return subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, check=False).returncode == 0


def tasks(**settings: Any) -> list[Task]:
    return tasks_of(experiment("asked", quality={"tasks": list(questions())} | settings))


@pytest.mark.parametrize("says", [str, "<think>Is it 7, or {{}}?\n</think>\n{}".format], ids=["plain", "thinking"])
def test_every_solution_is_right(says: Callable[[str], str]) -> None:
    """Also behind thoughts that hold another answer."""
    for task in tasks():
        scores = task.evaluate(KnowingEngine(says))
        assert [score.item for score in scores if score.score != 1] == []
        assert len(scores) == 30


@pytest.mark.parametrize("answer", ["", "Hm."])
def test_empty_and_vague_answers_are_wrong(answer: str) -> None:
    """Of every question."""
    for task in tasks():
        scores = task.evaluate(KnowingEngine(lambda _: answer))
        assert [score.item for score in scores if score.score] == []


def test_a_model_that_repeats_the_question_answers_none() -> None:
    """Weights that few bits have broken do so, and a text holds the fact that was asked for."""
    for task in tasks():
        engine = KnowingEngine()
        task.evaluate(engine)
        asked = iter([prompt.content for prompt in engine.asked])
        scores = task.evaluate(KnowingEngine(lambda _, asked=asked: str(next(asked))))  # type: ignore[misc]
        # One sum has the number that its question ends with.
        assert sum(score.score for score in scores) <= 1, task.name


def test_a_whole_sentence_may_hold_the_fact() -> None:
    """Models that chat seldom answer in one word."""
    [retrieval] = tasks(tasks=["retrieval"])
    scores = retrieval.evaluate(
        KnowingEngine("According to the text above, the answer to the question is **{}**.".format)
    )
    assert {score.score for score in scores} == {1.0}


def test_questions_are_those_that_were_published() -> None:
    """Scores are comparable only while questions stay: a new question is a new version."""
    assert {task.name: task.version for task in tasks()} == VERSIONS
    assert Counter(each.task for each in QUESTIONS.values()) == dict.fromkeys(questions(), 30)


def test_limit_draws_the_same_items_and_examples_are_never_asked() -> None:
    """Equal seeds draw alike, other seeds otherwise; the last questions are the examples."""
    drawn = [tasks(limit=5, few_shot=3, seed=seed)[0].evaluate(KnowingEngine()) for seed in (1, 1, 2)]
    items = [[score.item for score in scores] for scores in drawn]
    assert items[0] == items[1] != items[2]
    assert max(map(max, items)) < 27
    engine = KnowingEngine()
    tasks(limit=5, few_shot=2)[0].evaluate(engine)
    content = engine.asked[0].content
    assert isinstance(content, tuple)
    assert [role for role, _ in content] == ["user", "assistant", "user", "assistant", "user"]
    tasks(chat=False, few_shot=2)[0].evaluate(engine)
    assert str(engine.asked[0].content).count("Question: ") == 3
    assert engine.stop == ("\nQuestion:",)


@pytest.mark.parametrize(
    ("settings", "confined", "message"),
    [
        ({"tasks": ["code"]}, False, "code runs programs that the model writes, and the runner is in no container"),
        ({"few_shot": 30}, True, "quality.few_shot: 30 leaves none of the 30 items of arithmetic to ask"),
        ({"tasks": ["nonsense"]}, True, "quality.tasks: nonsense is no bundled task, and lm-evaluation-harness"),
        ({"tasks": ["nonsense"]}, True, "or write arithmetic or retrieval or instructions or code"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(settings: dict[str, Any], confined: bool, message: str) -> None:
    """Before anything is started."""
    config = experiment("asked", quality={"tasks": list(questions())} | settings)
    with raises(ConfigError, message):
        tasks_of(config, confined=confined)


@pytest.mark.parametrize(
    ("text", "ids", "end_id", "tokens"),
    [
        ("7", (5,), 9, 0),
        ("<think>x</think>7", (8, 3, 9, 5), 9, 3),
        ("x</think>y</think>7", (3, 9, 4, 9, 5), 9, 4),
        ("<think>x", (8, 3), 9, 2),
        ("x</think>7", (3, 4, 5), None, None),
    ],
)
def test_thoughts_reach_to_the_last_mark_of_their_end(
    text: str, ids: tuple[int, ...], end_id: int | None, tokens: int | None
) -> None:
    """An answer that ends within its thoughts is all thought; without the mark's id nothing is known."""
    assert thought_tokens(text, ids, len(ids), end_id) == tokens


def test_thoughts_that_the_template_begins_are_marked_and_a_cut_one_says_nothing() -> None:
    """The prompt ends with the mark: one answer ends its thoughts, the other is cut within them; without, no change."""
    marked = with_marks(["9 no</think>8", "is it 8", None], [True, False, False])
    assert marked == ["<think>9 no</think>8", "<think>is it 8", None]
    assert [Answer(text).said for text in marked if text] == ["8", ""]
    plain: list[str | None] = ["8", "<think>9</think>8"]
    assert with_marks(plain, [True, True]) == plain


def test_one_stray_mark_does_not_make_thoughts_of_all_other_answers() -> None:
    """Answers that end by themselves without a mark were no thoughts: their template begins none."""
    said: list[str | None] = ["7", "7</think>7", "it is 7", "7 is wh"]
    assert [Answer(text or "").said for text in with_marks(said, [True, True, True, False])] == [
        "7",
        "7",
        "it is 7",
        "7 is wh",
    ]
