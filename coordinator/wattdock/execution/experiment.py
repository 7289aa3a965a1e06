"""One experiment of a study: which passes are measured, which are missing, and what of it earlier runs measured.

The measurements themselves are in the study's folder. What has changed since an earlier run is not mixed in.
"""

from __future__ import annotations

import dataclasses
import os
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattdock.errors import Cause, ConfigError, ExitCode, PreflightError
from wattdock.execution.environment import environment
from wattdock.execution.failures import failure_of
from wattdock.inputs import check_prompts
from wattdock.opening import open_data, open_regular
from wattdock.planning import eta
from wattdock.records import Failure, RestartRecord
from wattdock.secrets import withheld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from wattdock.config import ExperimentConfig
    from wattdock.execution.recording import Recording
    from wattdock.inputs import ModelFolder
    from wattdock.metering import Timeline
    from wattdock.planning import ExecutionPlan
    from wattdock.records import EnvironmentSnapshot
    from wattdock.study import SavedRestart, StudyFolder

# Bytes of a log's begin, and of its end, that are kept: looking for secrets takes 2 s a megabyte.
LOG_BYTES = 1_000_000
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

    def recording(self, shared: Recording, restart: int, *, started_utc: str, started_ns: int) -> Recording:
        """Return the recording of a restart that begins now, with what a session shares."""
        saved = [saved.record for saved in self.saved.values()]
        return dataclasses.replace(
            shared,
            config=self.config,
            record=dataclasses.replace(shared.record, started_utc=started_utc, started_ns=started_ns),
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
        passes = (run_pass.span for run_pass in recording.record.all_passes)
        excerpt = timeline.excerpt([*recording.record.spans, *passes])
        record = recording.with_timeline(excerpt)
        chat_time = self.config.prompts.chat_time_utc or self.folder.begun
        try:
            # Anew for each record: a resumed run may meet another driver or package.
            snapshot = environment(self.plan, record, recording.runner, self.model, chat_time)
            architecture = self.model.config if self.model else None
            record = dataclasses.replace(record, environment=snapshot, architecture=architecture)
        except Exception as error:  # noqa: BLE001  (a bug here must not cost the passes)
            bug = failure_of(error, "environment", log=traceback.format_exc())
            record = dataclasses.replace(record, failure=record.failure or bug)
        if not record.passes and not record.failure:
            self.unmeasured = record
            return
        self.saved[recording.name] = self.folder.save(recording.name, record)

    def restart_records(self) -> list[Restart]:
        """Return all records in the order measured, each with its folder; an incomplete experiment's last says why.

        Raises:
            StoreError: A record cannot be read back.
        """
        records = [(saved.read(), saved.folder) for saved in self.saved.values()]
        records.sort(key=lambda pair: (pair[0].restart, pair[0].started_utc))
        if self.complete:
            return records
        restart = next(number for number in range(self.config.repeats.restarts) if self.wants(number))
        failure = self.interruption or Failure(
            kind=Failure.INTERRUPTED,
            message="the study ended before this experiment was complete; continue with --resume",
            stage=f"restart {restart + 1}",
            exit_code=int(ExitCode.INTERRUPTED),
        )
        if self.unmeasured:
            records.append((self.unmeasured, None))
        last, _ = records[-1]
        return [*records[:-1], (dataclasses.replace(last, failure=failure), None)]

    def append_log(self, log: Path) -> None:
        """Add a runner's log, if there is one, to the experiment's, without secrets; of a long one begin and end.

        Raises:
            OSError: It cannot be read or added.
        """
        if not log.exists():
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with open_data(log) as added, os.fdopen(open_regular(self.log_path, flags, owned=True), "ab") as gathered:
            left_out = added.seek(0, os.SEEK_END) - 2 * LOG_BYTES
            added.seek(0)
            parts = [added.read(LOG_BYTES if left_out > 0 else -1)]
            if left_out > 0:
                added.seek(left_out, os.SEEK_CUR)
                parts += [f"\n(wattdock: {left_out:,} bytes are left out here)\n".encode(), added.read()]
            for part in parts:
                gathered.write(withheld(part.decode(errors="replace")).encode())


def restore(
    plan: ExecutionPlan,
    folder: StudyFolder,
    *,
    resolve: Callable[[ExperimentConfig], ModelFolder],
    expected_pass_s: float | None,
) -> ExperimentState:
    """Return the state of an experiment that is not done, with what earlier runs measured of it.

    Args:
        resolve: Returns the folder of an experiment's model as it is now.

    Raises:
        ConfigError: The experiment's prompts file or its model's folder has changed since.
        PreflightError: Other GPUs were chosen now than those of the earlier passes.
    """
    experiment_id = plan.config.experiment_id
    history = folder.history(experiment_id)
    state = ExperimentState(plan, folder, earlier_results=len(history.folders), expected_pass_s=expected_pass_s)
    if history.status == "failed":
        folder.note_retried(experiment_id)
        return state
    state.saved = folder.saved(experiment_id)
    records, planned = [saved.record for saved in state.saved.values()], {gpu.uuid for gpu in plan.gpus}
    for before in state.measured_on:
        # An experiment's joules are of one set of GPUs.
        if (earlier := set(before.leased_gpus)) != planned:
            raise PreflightError(
                f"{plan.config.label} was measured on {', '.join(sorted(earlier)) or 'the CPU'}, and this run would "
                f"take {', '.join(sorted(planned)) or 'the CPU'}",
                "see that those are free and in CUDA_VISIBLE_DEVICES, or run it as a new study without --resume",
                cause=Cause.OTHER_MACHINE,
            )
    require_same_prompts(plan.config, [measured.prompts_sha256 for record in records for measured in record.passes])
    if state.measured_on:
        require_same_model(plan.config, resolve(plan.config), state.measured_on)
    return state


def require_same_prompts(config: ExperimentConfig, sent_sha256: Iterable[str | None]) -> None:
    """Refuse a prompts file that has changed since this study sent it: its content is not in the settings.

    Raises:
        ConfigError: The file has changed, or cannot be read.
    """
    sent = {sha256 for sha256 in sent_sha256 if sha256}
    if not (sent and config.prompts.file):
        return
    current = check_prompts(config)
    if current and (others := sent - {current}):
        raise ConfigError(
            f"the study has changed since it was begun: {config.label} was measured with other prompts than "
            f"{config.prompts.source} now holds ({min(others)[:8]} → {current[:8]})",
            "put them back, or run it as a new study without --resume",
            cause=Cause.PROMPTS_CHANGED,
        )


def require_same_model(
    config: ExperimentConfig, model: ModelFolder, measured_on: Iterable[EnvironmentSnapshot]
) -> None:
    """Refuse a model whose folder has changed since this study measured with it: the settings hold only its name.

    Raises:
        ConfigError: The folder has changed; names the files.
    """
    for before in measured_on:
        if before.model.files and (changes := model.changes_since(before.model.files)):
            raise ConfigError(
                f"the model's folder {model.path} has changed since {config.label} was measured: {changes}",
                "put the old files back, or run it as a new study without --resume",
                cause=Cause.MODEL_CHANGED,
            )
