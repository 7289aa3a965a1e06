"""A journal that survives whatever ends its writer, what it says of each experiment, and which study is resumed."""

from __future__ import annotations

import errno
import os
import re
import resource
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from make.machine import VirtualMachine
from make.outcomes import known
from make.records import measured
from refused import raises
from seams.study import History, Journal, histories, read_journal
from unprivileged import UID

from wattdock.config import ExperimentConfig, Study, load_study
from wattdock.errors import Cause, ConfigError, StoreError
from wattdock.records import RestartRecord
from wattdock.study import EarlierStudy, StudyFolder, find_study, open_study, study_to_resume
from wattdock.text import without_timestamp


def written(path: Path, *events: str) -> bytes:
    journal = Journal(path)
    for event in events:
        journal.append(event, n=1)
    journal.close()
    return path.read_bytes()


def test_a_line_cut_anywhere_costs_that_line_only(tmp_path: Path) -> None:
    """A coordinator can be killed, and a disk be full, in the middle of a write."""
    path = tmp_path / "journal.jsonl"
    content = written(path, "one", "two")
    first = content.index(b"\n") + 1
    for size in range(first, len(content)):
        path.write_bytes(content[:size])
        assert [line["event"] for line in read_journal(path.parent)[0]] == ["one"]
        journal = Journal(path)
        assert [line["event"] for line in journal.lines] == ["one"]
        journal.append("three")
        journal.close()
        assert [line["event"] for line in read_journal(path.parent)[0]] == ["one", "three"]


def test_two_coordinators_do_not_write_one_journal(tmp_path: Path) -> None:
    """The second is told, not let in."""
    path = tmp_path / "journal.jsonl"
    first = Journal(path)
    with raises(StoreError, "journal.jsonl", cause=Cause.IN_USE):
        Journal(path)
    first.close()
    Journal(path).close()


@pytest.mark.parametrize(
    "spoiled",
    [
        b"nonsense",
        b"\xff",
        b"5",
        b"[1]",
        b'{"evnt": "x"}',
        b'{"event": "stored", "experiment": "x"}',
        b'{"event": "stored", "experiment": [], "status": "ok", "folder": "x"}',
        b"[" * 100_000,
        b'{"event": "study"}',
    ],
)
def test_a_spoiled_line_in_the_middle_is_named_not_skipped(tmp_path: Path, spoiled: bytes) -> None:
    """It may be the one that says what was measured."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"event": "one"}\n' + spoiled + b'\n{"event": "two"}\n')
    with raises(StoreError, "journal.jsonl:2", cause=Cause.MALFORMED):
        read_journal(path.parent)


def test_a_line_that_found_no_room_is_not_written_later(tmp_path: Path) -> None:
    """Closing tries nothing again, and the next line follows the last whole one."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("one")
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
    try:
        with pytest.raises(OSError) as refused:  # noqa: PT011 (its number is asserted)
            journal.append("two")
        assert refused.value.errno in (errno.ENOSPC, errno.EFBIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.close()
    assert path.read_bytes() == before


def line(event: str, **values: Any) -> dict[str, Any]:
    return {"event": event, "experiment": "e", **values}


OK, FAILED, INTERRUPTED = (line("stored", status=status, folder=status) for status in ("ok", "failed", "interrupted"))


def done(*lines: dict[str, Any], retry_failed: bool = False) -> bool:
    return histories(lines).get("e", History()).is_done(retry_failed=retry_failed)


def test_only_a_whole_result_ends_an_experiment() -> None:
    """A failure does too, unless it is to be tried again; an interruption never; the last result stands."""
    assert done(OK)
    assert done(OK, retry_failed=True)
    assert done(FAILED)
    assert done(INTERRUPTED, OK)
    for lines in ((INTERRUPTED,), (), ({"event": "resumed"},)):
        assert not done(*lines)
    assert not done(FAILED, retry_failed=True)
    assert histories([INTERRUPTED, OK])["e"].folders[-1] == "ok"


def test_a_retry_that_was_killed_is_gone_on_with_and_not_begun_again() -> None:
    """What it has measured is not measured twice, with or without `--retry-failed`."""
    killed = histories([FAILED, line("retried")])["e"]
    assert (killed.status, killed.folders) == ("interrupted", ["failed"])
    assert not done(FAILED, line("retried"))
    assert done(FAILED, line("retried"), OK, retry_failed=True)


def study(*settings: dict[str, Any], **study_settings: Any) -> Study:
    return Study("s", tuple(ExperimentConfig.model_validate(experiment) for experiment in settings), **study_settings)


def opened(wanted: Study, output_dir: Path, earlier: EarlierStudy | None = None) -> StudyFolder:
    plans = VirtualMachine(output_dir).plans(wanted)
    return open_study(wanted, plans, output_dir, earlier=earlier, task=None, emit=lambda _: None)


def begin(tmp_path: Path, begun: Study) -> None:
    with opened(begun, tmp_path):
        pass


def resume(tmp_path: Path, wanted: Study) -> str:
    with opened(wanted, tmp_path, study_to_resume(wanted, tmp_path, resume=True)) as folder:
        return str(folder.lines[-1]["event"])


def test_the_latest_equal_study_is_resumed_however_its_file_is_written(tmp_path: Path) -> None:
    """The order of experiments in a file says nothing about what is measured in which order."""
    small, named = {"workload": {"batch_size": 1}}, {"name": "b"}
    begin(tmp_path, study(small, named))
    assert resume(tmp_path, study({"name": "other name"}, small)) == "resumed"


def test_with_nothing_to_resume_it_begins(tmp_path: Path) -> None:
    """So that one command line serves a scheduler's first and every later try."""
    assert resume(tmp_path, study({})) == "study"


def test_a_study_s_folder_is_named_by_its_time_name_and_number_and_shared_with_no_other(tmp_path: Path) -> None:
    """Of a long name its beginning; one that has begun in the same second, on whichever machine, keeps its folder."""
    odd = Study("größe & co./" + 40 * "x", study({}).experiments)
    with opened(odd, tmp_path) as folder:
        name = f"größe-co.-{30 * 'x'}"
        assert re.fullmatch(rf"\d{{8}}T\d{{6}}-{re.escape(name)}-1", folder.study_id)
    (tmp_path / "studies" / f"20260101T000000-{name}-7").mkdir()
    (tmp_path / "studies" / f"20260101T000000-{name}-8-1").mkdir()
    with opened(odd, tmp_path) as folder:
        assert folder.study_id.endswith(f"-{name}-8")
    with ThreadPoolExecutor(8) as pool:
        begun = list(pool.map(lambda _: opened(odd, tmp_path), range(8)))
    assert len({folder.path for folder in begun}) == 8
    for folder in begun:
        folder.__exit__()


@pytest.mark.parametrize("name", ["größe", "gro\u0308ße", "能耗", "my study!", 12 * "long ", "…"])
def test_a_study_is_found_by_the_name_it_was_given(tmp_path: Path, name: str) -> None:
    """Whatever of it stands in its folder's name."""
    with opened(Study(name, study({}).experiments), tmp_path) as folder:
        assert find_study(name, tmp_path).path == folder.path


def test_an_empty_newer_start_hides_no_older_one_with_measured_passes(tmp_path: Path) -> None:
    """By its name the newer one is still to be had; a failure in it is retried in its place."""
    twice = study({"repeats": {"passes": 2}})
    [config] = twice.experiments
    older, newer = (opened(twice, tmp_path) for _ in range(2))
    record = RestartRecord(0, passes=(measured(0, 1.0, 2.0, ()),))
    older.save(older.new_record_name(config.experiment_id, 0), record)
    older.__exit__()
    newer.note("stored", experiment=config.experiment_id, status="failed", folder="none")
    newer.__exit__()
    assert find_study("s-1", tmp_path).passes(twice) == (1, 2)
    for wanted, retry_failed, expected in (
        (True, False, older),
        (True, True, newer),
        (find_study("s-2", tmp_path), False, newer),
    ):
        how: dict[str, Any] = {"resume": wanted, "retry_failed": retry_failed}
        with opened(twice, tmp_path, study_to_resume(twice, tmp_path, **how)) as folder:
            assert folder.path == expected.path


def test_the_stored_copy_of_a_study_is_the_study(tmp_path: Path) -> None:
    """With every setting, also those that are not part of its identity; another user's is not ours to start."""
    begun = study({"name": "a", "wait_s": 7}, {"name": "b", "workload": {"batch_size": 3}}, order="written", seed=5)
    begin(tmp_path, begun)
    assert load_study(find_study("s", tmp_path).settings, {}) == begun
    if os.geteuid() == 0:
        folder = find_study("s-1", tmp_path).path
        for path in (folder / "journal.jsonl", folder):
            os.chown(path, UID, UID)
        with raises(ConfigError, "s-1", UID, cause=Cause.OTHERS_COULD_WRITE):
            assert find_study("s-1", tmp_path).settings


def test_records_that_another_user_could_have_written_are_refused(tmp_path: Path) -> None:
    """A resumed study takes them for measured."""
    [config] = study({}).experiments
    with opened(study({}), tmp_path) as folder:
        folder.save(folder.new_record_name(config.experiment_id, 0), RestartRecord(0))
        assert folder.saved(config.experiment_id)
        records = folder.path / "records"
        records.chmod(0o777)
        with raises(StoreError, records, cause=Cause.OTHERS_COULD_WRITE):
            folder.saved(config.experiment_id)


@pytest.mark.skipif(os.geteuid() != 0, reason="two real users need root")
def test_where_all_may_put_results_all_may_put_studies_and_a_name_means_one_s_own(tmp_path: Path) -> None:
    """A neighbour's later run of the same name hides none."""
    tmp_path.chmod(0o1777)
    begin(tmp_path, study({}))
    assert stat.S_IMODE((tmp_path / "studies").stat().st_mode) == 0o1777
    begin(tmp_path, study({}))
    for path in (*find_study("s-2", tmp_path).path.rglob("*"), find_study("s-2", tmp_path).path):
        os.chown(path, UID, UID)
    assert [find_study(name, tmp_path).name for name in ("s", "s-2")] == ["s-1", "s-2"]


def test_a_number_that_another_start_took_in_another_second_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time in a folder's name keeps both from colliding."""
    make, rival = Path.mkdir, tmp_path / "studies/20990101T000000-s-1"

    def mkdir(path: Path, *args: Any, **options: Any) -> None:
        make(path, *args, **options)
        if path.name.endswith("-s-1") and path != rival:
            make(rival, exist_ok=True)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    begin(tmp_path, study({}))
    assert sorted(without_timestamp(path.name) for path in (tmp_path / "studies").iterdir()) == ["s-1", "s-2"]


def test_a_name_that_means_no_study_or_several_is_answered_with_what_to_type(tmp_path: Path) -> None:
    """A whole name means one, though others begin so, and a study's its latest run; the oldest is named first of
    several, the newest of all.
    """
    for minute in range(10):
        begin(tmp_path, study({}))
        begun = find_study(f"s-{minute + 1}", tmp_path).path
        begun.rename(begun.with_name(f"20260101T00{minute:02}00-{without_timestamp(begun.name)}"))
    assert [find_study(name, tmp_path).name for name in ("s-1", "s")] == ["s-1", "s-10"]
    with raises(ConfigError, "s-1", "s-2", "s-3"):
        find_study("s-", tmp_path)
    with raises(ConfigError, "t-1", "did you mean s-1?", "s-10", "s-9", "s-8", "s-7"):
        find_study("t-1", tmp_path)


def test_the_run_of_the_highest_number_is_the_latest_though_the_clock_was_set_back(tmp_path: Path) -> None:
    """Times are labels: by them, the first of ten runs began last."""
    twice = study({"repeats": {"passes": 2}})
    [config] = twice.experiments
    for minute in reversed(range(10)):
        with opened(twice, tmp_path) as folder:
            folder.save(
                folder.new_record_name(config.experiment_id, 0), RestartRecord(0, passes=(measured(0, 1.0, 2.0, ()),))
            )
        folder.path.rename(folder.path.with_name(f"20260101T00{minute:02}00-{without_timestamp(folder.path.name)}"))
    assert known(study_to_resume(twice, tmp_path, resume=True)).name == find_study("s", tmp_path).name == "s-10"


@pytest.mark.parametrize(
    ("changed", "differences"),
    [
        (
            study({"name": "a"}, *({"name": name, "workload": {"seed": ord(name)}} for name in "bcd")),
            ["with b", "with c", "with d; undo"],
        ),
        (
            study({"name": "a"}, *({"name": name, "workload": {"seed": ord(name)}} for name in "bcde")),
            ["with b", "with c", "with d", "1 more"],
        ),
        (study({"name": "a", "workload": {"max_output_tokens": 9}}), ["workload.max_output_tokens 64 → 9"]),
        (study({"name": "b", "workload": {"batch_size": 9}}), ["with b", "without a"]),
        (study({"name": "a"}, seed=4), ["seed 0 → 4"]),
        (study({"name": "a"}, {"name": "c", "workload": {"seed": 1}}), ["with c"]),
    ],
)
def test_a_changed_study_is_refused_with_what_changed(tmp_path: Path, changed: Study, differences: list[str]) -> None:
    """Mixing two studies in one table would compare what was never comparable."""
    begin(tmp_path, study({"name": "a"}))
    with raises(ConfigError, *differences, cause=Cause.STUDY_CHANGED):
        resume(tmp_path, changed)


def test_a_journal_that_cannot_be_read_stops_only_studies_it_may_be_of(tmp_path: Path) -> None:
    """In a folder that several people use, one spoiled study would otherwise stop every other."""
    begin(tmp_path, study({}))
    other = tmp_path / "studies" / "20990101T000000-other-12345678"
    other.mkdir()
    (other / "journal.jsonl").write_text("nonsense\n")
    assert resume(tmp_path, study({})) == "resumed"
    other = other.rename(other.with_name("20990101T000000-s-2"))
    with pytest.raises(StoreError, match="20990101T000000-s-2"):
        resume(tmp_path, study({}))
    if os.geteuid() == 0:
        os.chown(other, UID, UID)
        assert resume(tmp_path, study({})) == "resumed", "another user's is not ours to resume"


@pytest.mark.parametrize("name", ["journal.jsonl", ".lock"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_file_in_a_journals_or_its_locks_place_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    """In one line, at once."""
    begin(tmp_path, study({}))
    [file] = tmp_path.glob(f"studies/*/{name}")
    file.rename(tmp_path / "moved")
    make = {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda path: path.symlink_to(tmp_path / "moved")}
    make[kind](file)
    with raises(StoreError, cause=Cause.NOT_A_FILE):
        resume(tmp_path, study({}))


def test_an_open_journal_says_the_same_as_one_that_is_opened_anew(tmp_path: Path) -> None:
    """Its histories follow each line that is added."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for added in (FAILED, line("retried"), INTERRUPTED, OK):
        journal.append(**added)
        assert journal.histories == histories(journal.lines)
    journal.close()
    again = Journal(path)
    assert again.histories == journal.histories == {"e": History(["failed", "interrupted", "ok"], "ok")}
    again.close()
