"""The growing record of one restart of one experiment; it survives whatever ends the restart."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wattdock.errors import Cause, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock.config import ExperimentConfig
    from wattdock.inputs import PromptSet
    from wattdock.metering import Timeline
    from wattdock.records import Failure, RequestRecord, RestartRecord, RunnerEnvironment


@dataclass
class Recording:
    """What a runner has measured so far of one restart of one experiment.

    Attributes:
        config: The experiment's settings.
        record: What was measured so far, without the meter's timeline.
        passes: Numbers of the passes that are left; an earlier, interrupted run may have measured some.
        rendered: What the texts of passes were rendered to in other records of the experiment, by restart, from 0.
        name: The record's name in the study's folder.
        stage: What is being done now, in words; a failure names it.
        runner: What the runner says of its own environment; None before it has loaded the model.
        runner_pids: Processes of the runner; one set for all experiments that the runner serves.
        prompts_sent: Hashes of the prompts that the runner was sent; one set for all experiments that it serves.
    """

    config: ExperimentConfig
    record: RestartRecord
    passes: frozenset[int] = frozenset()
    rendered: tuple[tuple[int, Mapping[str, str]], ...] = ()
    name: str = ""
    stage: str = "launch"
    runner: RunnerEnvironment | None = None
    runner_pids: set[int] = field(default_factory=set)
    prompts_sent: set[int | None] = field(default_factory=set)

    def add(self, **values: object) -> None:
        """Append a value to each named sequence of the record."""
        longer: dict[str, Any] = {name: (*getattr(self.record, name), value) for name, value in values.items()}
        self.record = dataclasses.replace(self.record, **longer)

    def note_rendered(self, prompts: PromptSet, rendered_sha256: str | None) -> None:
        """Note what the texts of a pass, warm-up included, were rendered to.

        Raises:
            ConfigError: In an earlier restart, or an earlier run, they were rendered to something else.
        """
        if rendered_sha256 is None:
            return
        sent = prompts.texts_sha256
        for restart, rendered in (*self.rendered, (self.record.restart, self.record.rendered)):
            if rendered.get(sent, rendered_sha256) != rendered_sha256:
                raise ConfigError(
                    f"restart {self.record.restart + 1} would send other prompts than restart {restart + 1}: "
                    f"the chat template or the tokenizer of {self.config.model.label} has changed, or renders "
                    "something that changes",
                    "put it back, or run the study as a new one",
                    cause=Cause.PROMPTS_CHANGED,
                )
        self.record = dataclasses.replace(self.record, rendered={**self.record.rendered, sent: rendered_sha256})

    def note_sent(self, requests: Sequence[RequestRecord]) -> bool:
        """Note which prompts were sent; return whether an earlier pass of the runner sent one of them already."""
        hashes = {request.prompt_hash for request in requests} - {None}
        reused = not hashes.isdisjoint(self.prompts_sent)
        self.prompts_sent |= hashes
        return reused

    def fail(self, failure: Failure | None) -> None:
        """Set why the restart ended early."""
        self.record = dataclasses.replace(self.record, failure=failure)

    def with_timeline(self, timeline: Timeline) -> RestartRecord:
        """Return the record with the timeline around it and the runner's processes."""
        return dataclasses.replace(self.record, timeline=timeline, runner_pids=frozenset(self.runner_pids))
