"""Which study `--resume` means, and what is said of one that has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from wattdock.config import ExperimentConfig, Study
from wattdock.errors import ConfigError, PreflightError, StoreError
from wattdock.execution.resume import open_study

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = {"driver_version": "580"}


def study(*settings: dict[str, Any], **study_settings: Any) -> Study:
    return Study("s", tuple(ExperimentConfig.model_validate(one) for one in settings), **study_settings)


def begin(tmp_path: Path, begun: Study) -> None:
    with open_study(begun, tmp_path, machine=MACHINE, resume=False):
        pass


def resume(tmp_path: Path, wanted: Study, machine: dict[str, Any] = MACHINE) -> str:
    with open_study(wanted, tmp_path, machine=machine, resume=True) as folder:
        return str(folder.lines[-1]["event"])


def test_the_latest_equal_study_is_resumed_however_its_file_is_written(tmp_path: Path) -> None:
    """The order of experiments in a file says nothing about what is measured in which order."""
    one, two = {"workload": {"batch_size": 1}}, {"name": "b"}
    begin(tmp_path, study(one, two))
    assert resume(tmp_path, study({"name": "other name"}, one)) == "resumed"


def test_with_nothing_to_resume_it_begins(tmp_path: Path) -> None:
    """So that one command line serves a scheduler's first and every later try."""
    assert resume(tmp_path, study({})) == "study"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (study({"name": "a", "workload": {"max_output_tokens": 9}}), "a: workload.max_output_tokens 64 → 9"),
        (study({"name": "b", "workload": {"batch_size": 9}}), "with b; without a"),
        (study({"name": "a"}, seed=4), "seed 0 → 4"),
        (study({"name": "a"}, {"name": "c", "workload": {"seed": 1}}), "with c"),
    ],
)
def test_a_changed_study_is_refused_with_what_changed(tmp_path: Path, changed: Study, words: str) -> None:
    """Mixing two studies in one table would compare what was never comparable."""
    begin(tmp_path, study({"name": "a"}))
    with pytest.raises(ConfigError, match="the study has changed since") as caught:
        resume(tmp_path, changed)
    assert words in str(caught.value)


def test_another_machine_is_refused_with_what_differs(tmp_path: Path) -> None:
    """A row's restarts must be of one machine."""
    begin(tmp_path, study({}))
    with pytest.raises(PreflightError, match="driver_version 580 → 590"):
        resume(tmp_path, study({}), {"driver_version": "590"})
    with pytest.raises(PreflightError, match="driver_version 580 → None"):
        resume(tmp_path, study({}), {})


def test_a_journal_that_cannot_be_read_stops_only_studies_it_may_be_of(tmp_path: Path) -> None:
    """In a folder that several people use, one spoiled study would otherwise stop every other."""
    begin(tmp_path, study({}))
    other = tmp_path / "studies" / "20990101T000000-other-12345678"
    other.mkdir()
    (other / "journal.jsonl").write_text("nonsense\n")
    assert resume(tmp_path, study({})) == "resumed"
    other.rename(other.with_name("20990101T000000-s-12345678"))
    with pytest.raises(StoreError, match="20990101T000000-s-12345678"):
        resume(tmp_path, study({}))
