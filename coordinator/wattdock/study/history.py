"""What was measured before: in the study that is resumed, and in earlier results of the same experiments.

Reads only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.errors import StoreError
from wattdock.results.store import RESULT, load_result
from wattdock.study.folder import PASS, STORED
from wattdock.study.pace import cost_of
from wattdock.study.row import Row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from wattdock.config.experiment import ExperimentConfig
    from wattdock.preflight import Ready
    from wattdock.results.result import ExperimentResult
    from wattdock.study.folder import StudyFolder
    from wattdock.study.pace import Cost

OK, FAILED, INTERRUPTED = "ok", "failed", "interrupted"


def stored_rows(folder: StudyFolder) -> dict[str, list[tuple[str, str]]]:
    """Return, per experiment, the status and folder name of each row that the study has stored, in order."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for line in folder.lines:
        if line["event"] == STORED:
            rows.setdefault(line["experiment"], []).append((line["status"], line["folder"]))
    return rows


def is_done(stored: Sequence[tuple[str, str]], *, retry_failed: bool) -> bool:
    """Whether nothing is to be measured of an experiment whose rows are `stored`."""
    last = stored[-1][0] if stored else INTERRUPTED
    return last == OK or (last == FAILED and not retry_failed)


def restore(ready: Ready, folder: StudyFolder, *, expected: Cost | None) -> Row:
    """Return the row of an experiment that is not done, with what was measured of it before."""
    config = ready.config
    row = Row(ready, folder, expected=expected)
    last = stored_rows(folder).get(config.experiment_id, [(INTERRUPTED, "")])[-1][0]
    if last != INTERRUPTED:
        # Its row holds what there was; the coordinator may have been killed before it tidied up.
        folder.drop(config.experiment_id)
        return row
    row.kept = folder.kept(config.experiment_id)
    row.model = next((one.read().model for one in row.kept.values()), None)
    noted = {(line["restart"], line["pass"]) for line in folder.lines if _is_pass_of(line, config.experiment_id)}
    for restart in range(config.repeats.restarts):
        # Killed between the record and the journal's line.
        for index in sorted(row.measured(restart)):
            if (restart, index) not in noted:
                row.note_pass(restart, index)
    return row


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


def _is_pass_of(line: Mapping[str, object], experiment_id: str) -> bool:
    return line["event"] == PASS and line["experiment"] == experiment_id
