"""What a loaded model is asked after its measured passes, to see how well it answers, as a person writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from wattdock.config.lengths import Positive, StrictSettings
from wattdock.config.workload import Seed


class QualitySpec(StrictSettings):
    """Tasks that the loaded model answers, greedily, after the measured passes; their energy is measured apart.

    Attributes:
        tasks: `arithmetic`, `retrieval`, `instructions` and `code` come with wattdock; other names are tasks of
            lm-evaluation-harness, which `pip install 'wattdock[quality]'` adds.
        limit: Items of each task, drawn with `seed`; None takes all.
        chat: Wrap questions in the model's chat template; its variables are `workload.prompts.chat_template_kwargs`.
        few_shot: Solved examples before each question; None is the task's own number.
        max_output_tokens: Longest answer, thoughts included; a shorter limit of a task of the harness stays.
        run_code: Run programs that the model wrote although the runner is in no container.
        folder: More tasks of the harness, and their data: YAML files and what they name.
    """

    tasks: Annotated[list[str], Field(min_length=1)]
    limit: Positive | None = None
    seed: Seed = 0
    chat: bool = True
    few_shot: Annotated[int, Field(ge=0, le=100)] | None = None
    max_output_tokens: Positive = 256
    run_code: bool = False
    folder: Annotated[Path, Field(strict=False)] | None = None
