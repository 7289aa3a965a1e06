"""How well a model answers: tasks ask questions, and score the answers.

In: `quality:` of an experiment, and an `Engine` that answers. Out: a `Score` for each item of a task.
Must not know: meters, runners, records, energy. A task is ours (`bundled`) or lm-evaluation-harness's (`harness`).
"""

from wattdock.quality.task import (
    THOUGHTS_END,
    Answer,
    Engine,
    Likelihood,
    Prompt,
    Score,
    Task,
    thought_tokens,
    with_marks,
)
from wattdock.quality.tasks import tasks_of

__all__ = [
    "THOUGHTS_END",
    "Answer",
    "Engine",
    "Likelihood",
    "Prompt",
    "Score",
    "Task",
    "tasks_of",
    "thought_tokens",
    "with_marks",
]
