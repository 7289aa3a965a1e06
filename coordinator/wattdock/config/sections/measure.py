"""Settings of a command of a person's own, which is measured in an engine's place."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from wattdock.config.lengths import StrictSettings
from wattdock.config.sections import BackendSection
from wattdock.files import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping

# Characters of a command that stands for a name.
MOST_LABEL = 60
# The unit of a command that says nothing of its work.
RUNS = "runs"


class WorkUnit(StrictSettings):
    """What a command's joules are divided by.

    Attributes:
        unit: The plural of what the script counts, as it calls it in `work(samples=64)`; "steps" are `step()` or the
            lines that `step_regex` finds; "runs" is the command itself.
        count: How many a run does, with `within` in the spans that count, where the script does not say.
        within: Name of the spans that count: from the begin of the first one to the end of the last; None is the whole
            run.
    """

    unit: Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,39}$")] = RUNS
    count: Annotated[int, Field(ge=1, le=2**53)] | None = None
    within: Annotated[str, Field(min_length=1, max_length=64)] | None = None


class Section(BackendSection):
    """`measure:` in an experiment: a command that is run once in each restart, as it is typed in a terminal.

    Attributes:
        dtype: The command's own.
        command: Program and arguments; a single text is split as a shell splits it. `{gpus}` stands for the number of
            GPUs, and `{NAME}` for what `args` says of NAME.
        args: Values that stand in the command or in `env`, to be swept.
        env: Environment variables besides those that wattdock was called with; a container gets these alone.
        folder: Where it runs; None is the folder in which wattdock is called.
        step_regex: A regular expression; each line of output in which it is found is a step.
    """

    dtype: Literal["auto"] = "auto"
    command: Annotated[list[str], Field(min_length=1)]
    args: dict[str, str | int | float | bool] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    folder: Annotated[Path, Field(strict=False)] | None = None
    work: WorkUnit = WorkUnit()
    step_regex: str | None = None

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return shlex.split(value) if isinstance(value, str) else value

    @field_validator("step_regex")
    @classmethod
    def _compiles(cls, text: str | None) -> str | None:
        try:
            re.compile(text or "")
        except re.error as error:
            raise ValueError(f"{text!r} is no regular expression: {error}") from error
        return text

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.passed_through:
            raise ValueError(f"unknown key {self.passed_through[0]!r}")
        texts = [*self.command, *self.env.values()]
        if unused := next((name for name in self.args if not any(f"{{{name}}}" in text for text in texts)), None):
            raise ValueError(f"args.{unused} stands nowhere: write {{{unused}}} in the command or in env")
        if self.work.count and self.work.unit == RUNS:
            raise ValueError("work.count is of a unit: set work.unit (--unit), such as samples")
        if self.step_regex is not None and self.work.unit != "steps":
            what = f"step_regex counts steps, and work.unit is {self.work.unit}"
            raise ValueError(f"{what}; set work.unit: steps (--unit steps)")
        if self.step_regex is not None and self.work.within is not None:
            # A line is seen up to half a second after it was printed.
            raise ValueError("step_regex is too late for work.within (--within): mark steps by step() in the script")
        return self

    @property
    def working_folder(self) -> Path:
        """Where it runs, as an absolute path."""
        return expanded(self.folder or Path()).absolute()

    @property
    def text(self) -> str:
        """The command in one line, for any number of GPUs."""
        return " ".join(self.filled_in("{gpus}")[0])

    @property
    def label(self) -> str:
        """The command as tables have it: short, and files by their names alone."""
        return shorten(
            " ".join(word.rpartition("/")[2] or word for word in self.text.split()), MOST_LABEL, placeholder=" …"
        )

    def filled_in(self, gpus: int | str) -> tuple[list[str], dict[str, str]]:
        """Return the command's words and its variables for a number of GPUs."""
        values: Mapping[str, Any] = {**self.args, "gpus": gpus}

        def fill(text: str) -> str:
            for name, value in values.items():
                text = text.replace(f"{{{name}}}", str(value))
            return text

        return list(map(fill, self.command)), {name: fill(text) for name, text in self.env.items()}
