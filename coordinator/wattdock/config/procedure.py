"""How often and for how long an experiment is measured, and what it is asked afterwards, as a person writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat

from wattdock.config.lengths import Positive, StrictSettings
from wattdock.config.workload import Seed
from wattdock.text import pluralize


class RepeatsSpec(StrictSettings):
    """`restarts` fresh runners, each with `passes` measured passes."""

    # Fewest restarts with an interval: from two it would reach 12.7 standard errors to each side.
    LEAST_FOR_INTERVAL: ClassVar = 3
    # Half width of the widest interval that may be published.
    MOST_UNCERTAIN: ClassVar = 0.02
    WITHDRAWN: ClassVar = {"until": None, "most": 8}

    restarts: Positive = 1
    passes: Positive = 2

    @property
    def too_few(self) -> str:
        """Why no reproduction can be decided; empty where there are enough restarts for an interval."""
        least, count = self.LEAST_FOR_INTERVAL, pluralize(self.restarts, "restart")
        return f"{count}, so that a reproduction stays undecided ({least} is the least)" * (self.restarts < least)

    @property
    def measured(self) -> int:
        """Measured passes of all restarts."""
        return self.restarts * self.passes


class WarmUpSpec(StrictSettings):
    """What precedes the measured work of every restart.

    Attributes:
        profile: "quick" runs `passes` short passes, which do not count. "lead-in" runs none: each measured pass is one
            continuous run, whose beginning does not count, and which goes on until what counts is long enough.
        passes: Passes of the quick profile.
        lead_in_s, lead_in_lifetimes: Length of the lead-in: seconds, or mean lifetimes of a request if longer.
        window_lifetimes: Least length of what counts, in mean lifetimes of a request; `workload.min_duration_s` is its
            least length in seconds.
    """

    profile: Literal["quick", "lead-in"] = "quick"
    passes: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1
    lead_in_s: NonNegativeFloat = 45
    lead_in_lifetimes: NonNegativeFloat = 2
    window_lifetimes: NonNegativeFloat = 5

    def lead_in(self, lifetime_s: float) -> float:
        """Return the length of the lead-in at this mean lifetime of a request, s; 0 under the quick profile."""
        return max(self.lead_in_s, self.lead_in_lifetimes * lifetime_s) if self.profile == "lead-in" else 0.0


class IdleSpec(StrictSettings):
    """Power of the GPUs with the model loaded and without work, metered once after each load; for net energy only.

    Attributes:
        duration_s: 0 does not meter it.
    """

    duration_s: NonNegativeFloat = 0.0


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
        folder: More tasks of the harness, and their data: YAML files and what they name, in this folder.
    """

    tasks: Annotated[list[str], Field(min_length=1)]
    limit: Positive | None = None
    seed: Seed = 0
    chat: bool = True
    few_shot: Annotated[int, Field(ge=0, le=100)] | None = None
    max_output_tokens: Positive = 256
    run_code: bool = False
    folder: Annotated[Path, Field(strict=False)] | None = None
