"""How the tasks of a study are queued on a cluster: the `fleet:` section of a study file."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from wattdock.config.lengths import StrictSettings


def _option(text: str) -> str:
    if not re.fullmatch(r"--(?!array)[a-z][^\n\r]*", text):
        raise ValueError(f"{text!r} is no option for every job; write one of sbatch's, as in --qos=low, but --array")
    return text


# As sbatch takes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours, ….
Time = Annotated[str, Field(pattern=r"^(\d+-)?\d+(:\d\d){0,2}$")]
# What stands in one line of a script, as one word.
Word = Annotated[str, Field(pattern=r"^[^\s'\"\\#]+$")]
Line = Annotated[str, Field(pattern=r"^[^\n\r]+$")]
Option = Annotated[str, AfterValidator(_option)]


class FleetSpec(StrictSettings):
    """How Slurm is asked to run a study whose tasks are its load groups; see `run --on slurm`.

    Attributes:
        partition: Slurm's partition; the cluster's default without it.
        account: Whom the time is charged to.
        time: Limit of a task, as sbatch takes it: "90" minutes, "1:30:00", "1-12". A task that meets it ends the pass
            it measures and queues itself again.
        end_before_s: Seconds before that limit at which a task is told to end; more than a pass takes.
        constraint: Features that a node must have.
        exclusive: Whether a task has its node to itself; by default, where an experiment has `exclusive: machine`.
        tasks_at_once: Most tasks of an array that run at one time; an array holds tasks with equally many GPUs.
        prepare: Where models and the backends' environments are made, in WATTDOCK_HOME and the checkout, which all
            nodes share: "here" is the machine that submits, before the first task, so that nodes need no network. With
            "none" each task makes what its node lacks.
        setup: Shell lines before each task, as in `module load cuda`.
        more: Other options of sbatch, as in `--cpus-per-gpu=16`; those that a task depends on win over them.
    """

    partition: Word | None = None
    account: Word | None = None
    time: Time | None = None
    end_before_s: Annotated[int, Field(ge=1, le=65_535)] = 300
    constraint: Word | None = None
    exclusive: bool | None = None
    tasks_at_once: Annotated[int, Field(ge=1)] | None = None
    prepare: Literal["here", "none"] = "here"
    setup: list[Line] = Field(default_factory=list)
    more: list[Option] = Field(default_factory=list)
