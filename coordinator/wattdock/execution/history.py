"""What was measured before: in the study that is resumed, and in earlier results of the same experiments.

Reads only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError, PreflightError, StoreError
from wattdock.execution.eta import cost_of
from wattdock.execution.row import Row
from wattdock.execution.study_folder import PASS, RETRIED, STORED
from wattdock.inputs import check_prompts
from wattdock.store import RESULT, load_result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from wattdock.analysis import ExperimentResult
    from wattdock.checks import ExecutionPlan
    from wattdock.config import ExperimentConfig
    from wattdock.execution.eta import Cost
    from wattdock.execution.journal import Line
    from wattdock.execution.study_folder import StudyFolder

OK, FAILED, INTERRUPTED = "ok", "failed", "interrupted"


@dataclass
class Past:
    """What a journal says of one experiment.

    Attributes:
        folders: Of the rows stored, in order.
        status: Of the last of them; "interrupted" where there is none, or where it is being tried again.
        noted: Its passes that stand in the journal, as (restart, pass).
    """

    folders: list[str] = field(default_factory=list)
    status: str = INTERRUPTED
    noted: set[tuple[int, int]] = field(default_factory=set)

    def is_done(self, *, retry_failed: bool) -> bool:
        """Whether nothing is to be measured any more."""
        return self.status == OK or (self.status == FAILED and not retry_failed)


def pasts(lines: Iterable[Line]) -> dict[str, Past]:
    """Return what the journal says of each experiment it names, by experiment id."""
    found: dict[str, Past] = {}
    for line in lines:
        if "experiment" not in line:
            continue
        past = found.setdefault(line["experiment"], Past())
        if line["event"] == STORED:
            past.folders.append(line["folder"])
            past.status = line["status"]
        elif line["event"] == RETRIED:
            past.status, past.noted = INTERRUPTED, set()
        elif line["event"] == PASS:
            past.noted.add((line["restart"], line["pass"]))
    return found


def restore(ready: ExecutionPlan, folder: StudyFolder, past: Past, *, expected: Cost | None) -> Row:
    """Return the row of an experiment that is not done, with what was measured of it before.

    Raises:
        ConfigError: Its prompts file has changed since.
        PreflightError: Other GPUs were chosen for it than those it was measured on.
    """
    experiment_id = ready.config.experiment_id
    row = Row(ready, folder, earlier_rows=len(past.folders), expected=expected)
    if past.status == FAILED:
        folder.drop(experiment_id)
        folder.note(RETRIED, experiment=experiment_id)
        return row
    row.kept = folder.kept(experiment_id)
    _require_same_gpus(ready, row)
    require_same_prompts(ready.config, [sent for one in row.kept.values() for sent in one.prompts_sha256])
    for restart in range(ready.config.repeats.restarts):
        # Killed between the record and the journal's line.
        for index in sorted(row.measured(restart)):
            if (restart, index) not in past.noted:
                row.note_pass(restart, index)
    return row


def _require_same_gpus(ready: ExecutionPlan, row: Row) -> None:
    """See that what is left runs where the rest did: a row's joules are those of one set of GPUs."""
    chosen = frozenset(gpu.uuid for gpu in ready.gpus)
    before = next((one.gpu_uuids for one in row.kept.values() if one.passes and one.gpu_uuids != chosen), None)
    if before is not None:
        raise PreflightError(
            f"{ready.config.label} was measured on {', '.join(sorted(before)) or 'the CPU'}, and this run would take "
            f"{', '.join(sorted(chosen)) or 'the CPU'}; see that those are free and in CUDA_VISIBLE_DEVICES, "
            "or run it as a new study without --resume"
        )


def require_same_prompts(config: ExperimentConfig, sent_sha256: Iterable[str | None]) -> None:
    """See that a prompts file holds what it held when this study sent it: its content is not in the settings.

    Raises:
        ConfigError: It has changed, or cannot be read.
    """
    now = check_prompts(config.prompts)
    if now and (others := {one for one in sent_sha256 if one} - {now}):
        raise ConfigError(
            f"the study has changed since it was begun: {config.label} was measured with other prompts than "
            f"{config.prompts.source} now holds ({min(others)[:8]} → {now[:8]}); put them back, "
            "or run it as a new study without --resume"
        )


def stored_result(name: str, output_dir: Path) -> tuple[ExperimentResult, Path]:
    """Return a row that a study has stored, and its folder.

    Raises:
        StoreError: It is gone.
    """
    path = output_dir / name
    if not (path / RESULT).exists():
        raise StoreError(f"{path} is gone, where this study stored a row; put it back, or run without --resume")
    return load_result(path), path


def earlier_costs(experiments: Sequence[ExperimentConfig], output_dir: Path) -> Mapping[str, Cost]:
    """Return what each experiment cost in its latest good result under `output_dir`, by experiment id."""
    names: dict[str, list[Path]] = {}
    for path in sorted(output_dir.glob("2*-*-*")):
        names.setdefault(path.name.split("-")[2], []).append(path)
    found = {one.experiment_id: _cost(names.get(one.experiment_id[:8], ()), one) for one in experiments}
    return {experiment_id: cost for experiment_id, cost in found.items() if cost}


def _cost(paths: Sequence[Path], config: ExperimentConfig) -> Cost | None:
    for path in reversed(paths):
        try:
            result = load_result(path)
        except StoreError:
            # Another version's, or being written: it only would have told how long it took.
            continue
        if result.status == OK and result.experiment_id == config.experiment_id:
            return cost_of(result.spans)
    return None
