"""One experiment of a study: which passes are measured, and which are missing.

The measurements themselves are in the study's folder.
"""

from __future__ import annotations

import dataclasses
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattdock.errors import ExitCode
from wattdock.execution.environment import environment
from wattdock.planning import eta
from wattdock.records import Failure, RestartRecord

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.analysis import Fallback
    from wattdock.config import ExperimentConfig
    from wattdock.execution.recording import Recording
    from wattdock.inputs import ModelFolder
    from wattdock.metering import Timeline
    from wattdock.planning import ExecutionPlan
    from wattdock.records import EnvironmentSnapshot, RunnerEnvironment
    from wattdock.study import SavedRestart, StudyFolder

# A record, and its folder; None where it is not, or not exactly so, on disk.
Restart = tuple[RestartRecord, "Path | None"]


@dataclass
class ExperimentState:
    """The state of one experiment while its study is measured.

    Attributes:
        earlier_results: How many results of the experiment the study has stored before.
        expected_pass_s: Seconds of a pass in earlier results; None without any.
        model: The model as this run's latest runner got it.
        saved: Restarts on disk, by the record's name; an interrupted restart that was resumed has two records.
        interruption: Why the run ended in the middle of the experiment, if it did.
        fallback: Which failed experiment this one is measured instead of; None for an experiment of the study.
        unmeasured: A restart that was interrupted before its first pass ended.
    """

    plan: ExecutionPlan
    folder: StudyFolder
    earlier_results: int = 0
    expected_pass_s: float | None = None
    model: ModelFolder | None = None
    saved: dict[str, SavedRestart] = field(default_factory=dict)
    interruption: Failure | None = None
    unmeasured: RestartRecord | None = None
    fallback: Fallback | None = None

    @property
    def config(self) -> ExperimentConfig:
        """The experiment's settings."""
        return self.plan.config

    @property
    def log_path(self) -> Path:
        """Where the logs of the experiment's runners are gathered."""
        return self.folder.log_path(self.config.experiment_id)

    @property
    def failure(self) -> Failure | None:
        """Why a restart failed."""
        return next((saved.record.failure for saved in self.saved.values() if saved.record.failure), None)

    @property
    def begun(self) -> bool:
        """Whether a runner has served the experiment."""
        return bool(self.saved or self.unmeasured)

    @property
    def complete(self) -> bool:
        """Whether every pass of every restart is measured, or a restart has failed."""
        return bool(self.failure) or not self.remaining().passes

    def measured(self, restart: int) -> frozenset[int]:
        """Return the measured passes of restart number `restart`, from 0."""
        return frozenset().union(*(saved.passes for saved in self.saved.values() if saved.record.restart == restart))

    def recording(self, shared: Recording, restart: int, *, started_utc: str) -> Recording:
        """Return the recording of a restart that begins now, with what a session shares."""
        saved = [saved.record for saved in self.saved.values()]
        return dataclasses.replace(
            shared,
            config=self.config,
            record=dataclasses.replace(shared.record, started_utc=started_utc),
            passes=frozenset(range(self.config.repeats.passes)) - self.measured(restart),
            rendered=tuple((record.restart, record.rendered) for record in saved),
            name=self.folder.new_record_name(self.config.experiment_id, restart),
        )

    @property
    def measured_on(self) -> list[EnvironmentSnapshot]:
        """What the measured passes ran on, of every restart."""
        records = [saved.record for saved in self.saved.values()]
        return [record.environment for record in records if record.passes and record.environment]

    def wants(self, restart: int) -> bool:
        """Return whether a pass of restart number `restart`, from 0, is still to be measured."""
        repeats = self.config.repeats
        return restart < repeats.restarts and not self.failure and len(self.measured(restart)) < repeats.passes

    def remaining(self) -> eta.Remaining:
        """Return how many passes are left, and how long a pass has taken so far."""
        repeats, records = self.config.repeats, [saved.record for saved in self.saved.values() if saved.record.passes]
        passes = sum(repeats.passes - len(self.measured(restart)) for restart in range(repeats.restarts))
        last = records[-1] if records else None
        measured_s = eta.pass_seconds([*last.spans, *(measured.span for measured in last.passes)]) if last else None
        return eta.Remaining(self.config, 0 if self.failure else passes, measured_s or self.expected_pass_s)

    def save(self, recording: Recording, timeline: Timeline) -> None:
        """Write to disk what a runner has measured so far."""
        failure = recording.record.failure
        if failure and failure.kind == Failure.INTERRUPTED:
            # An interruption is no failure of the experiment: `--resume` goes on from here.
            self.interruption = failure
            recording.fail(None)
        excerpt = timeline.excerpt([*recording.record.spans, *(measured.span for measured in recording.record.passes)])
        record = self._with_environment(recording.with_timeline(excerpt), recording.runner)
        if not record.passes and not record.failure:
            self.unmeasured = record
            return
        self.saved[recording.name] = self.folder.save(recording.name, record)

    def restarts(self) -> list[Restart]:
        """Return all records in the order measured, each with its folder; an incomplete experiment's last says why.

        Raises:
            StoreError: A record cannot be read back.
        """
        restarts = [(saved.read(), saved.folder) for saved in self.saved.values()]
        restarts.sort(key=lambda pair: (pair[0].restart, pair[0].started_utc))
        if self.complete:
            return restarts
        restart = next(number for number in range(self.config.repeats.restarts) if self.wants(number))
        failure = self.interruption or Failure(
            kind=Failure.INTERRUPTED,
            message="the study ended before this experiment was complete; continue with --resume",
            stage=f"restart {restart + 1}",
            exit_code=int(ExitCode.INTERRUPTED),
        )
        if self.unmeasured:
            restarts.append((self.unmeasured, None))
        last, _ = restarts[-1]
        return [*restarts[:-1], (dataclasses.replace(last, failure=failure), None)]

    def _with_environment(self, record: RestartRecord, runner: RunnerEnvironment | None) -> RestartRecord:
        """Return `record` with what it was measured on: a resumed run may meet another driver or package."""
        try:
            snapshot = environment(
                self.plan, record, runner, self.model, self.config.prompts.chat_time_utc or self.folder.begun
            )
        except Exception as error:  # noqa: BLE001  (a bug here must not cost the passes)
            failure = Failure(
                kind=type(error).__name__,
                message=f"a bug in wattdock: {error}",
                stage="environment",
                exit_code=int(ExitCode.BUG),
                log_tail=traceback.format_exc(),
            )
            return dataclasses.replace(record, failure=record.failure or failure)
        architecture = self.model.config if self.model else None
        return dataclasses.replace(record, environment=snapshot, architecture=architecture)
