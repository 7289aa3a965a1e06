"""Studies whose coordinator is killed, stopped or out of room, and another user's files in the same folder."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from command import SMALL as SINGLE
from command import on_gpus, wait_for, wait_in_pass
from fake_nvml import FakeGpu
from unprivileged import give_to_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from command import Command

STORE, INTERRUPTED = 7, 130
HEAD = "defaults:\n  backend: fake\n  model: 'shape:tiny-llama'\n"
# Two loads × two batch sizes × two restarts × two passes of a tenth of a second.
SWEEP = (
    HEAD + "  workload: {max_output_tokens: 5}\n  warmup: {passes: 0}\n  repeats: {restarts: 2, passes: 2}\n"
    "sweep:\n  workload.batch_size: [1, 2]\n  fake.step_s: [0.008, 0.01]\n"
)
# One experiment of passes of three seconds: time enough to do something to each, also on busy cores.
SLOW = (
    HEAD + "  workload: {max_output_tokens: 10, batch_size: 1}\n  warmup: {passes: 0}\n  repeats: {passes: 2}\n"
    "  fake: {step_s: 0.15}\nexperiments: [{name: slow}]\n"
)
EXPECTED = {
    (f"batch_size={size} step_s={step}", restart, number): 1
    for size in (1, 2)
    for step in ("0.008", "0.01")
    for restart in (0, 1)
    for number in (0, 1)
}
# What a fake GPU draws, and how many standard uncertainties of their timing joules may be off by.
IDLE_W, DEVIATIONS = 80, 4


def durable(wattdock: Command) -> set[tuple[str, int, int]]:
    """Return the passes on disk: in results, and in records of restarts without a result, by experiment."""
    results = wattdock.folder / "results"
    records = [(file.parent.name[:8], file) for file in results.glob("studies/*/records/[!.]*/record.json")]
    records += [(file.parents[2].name.split("-")[2], file) for file in results.glob("2*/restarts/*/record.json")]
    passes = set()
    for experiment, file in records:
        record = json.loads(file.read_text())
        passes |= {(experiment, record["restart"], measured["index"]) for measured in record["passes"]}
    return passes


def passes(results: list[dict[str, Any]]) -> Counter[tuple[str, int, int]]:
    return Counter(
        (result["config"]["name"], measured["restart"], measured["pass"])
        for result in results
        for measured in result["energy"]["passes"]
    )


def test_a_study_killed_again_and_again_is_resumed_with_nothing_lost_and_nothing_measured_twice(
    wattdock: Command,
) -> None:
    """SIGKILL at random events; in the end the table is that of a run that was left alone."""
    chance = random.Random(7)
    file = wattdock.write(SWEEP)
    before = durable(wattdock)
    for _ in range(2):
        with wattdock.start("run", file, "--resume", "--progress-json", stderr=subprocess.PIPE) as running:
            assert running.stderr is not None
            for _ in itertools.islice(running.stderr, chance.randrange(10, 40)):
                pass
            wattdock.interrupt(signal.SIGKILL)
        assert wattdock.left_after() == []
        assert durable(wattdock) >= before, "a pass that was durable is gone"
        before = durable(wattdock)
    done = wattdock("run", file, "--resume", timeout=300)
    assert done.returncode == 0, done.stderr
    results = wattdock.results()
    assert passes(results) == EXPECTED
    assert {result["status"] for result in results} == {"ok"}
    assert len(durable(wattdock)) == 16
    for result in results:
        assert result["performance"]["requests"] == 2 * 2 * 2 * result["config"]["workload"]["batch_size"]
    left = [path for path in [*wattdock.home.rglob(".*"), *(wattdock.home / "tmp").iterdir()] if path.is_dir()]
    assert left == [], "what the killed ones were filling"
    after = wattdock("run", file, "--resume")
    assert (after.returncode, "0 of 16 passes" in after.stderr) == (0, True)
    assert len(wattdock.results()) == 4


@pytest.fixture
def fill(wattdock: Command) -> Iterator[Callable[[], Path]]:
    """Put the results on a small disk of their own; return what fills it, with the file that does."""
    small = wattdock.folder / "results"
    small.mkdir()
    mount: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=51m,mode=777", "none", small]
    if os.getuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a small file system needs root and CAP_SYS_ADMIN")

    def write() -> Path:
        with (small / ".filler").open("wb", buffering=0) as out, contextlib.suppress(OSError):
            while out.write(b"\0" * 65536):
                pass
        return small / ".filler"

    yield write
    subprocess.run(["umount", small], check=True)


def test_a_disk_that_fills_up_stops_a_study_which_goes_on_when_there_is_room(
    wattdock: Command, fill: Callable[[], Path]
) -> None:
    """What was durable is still there, results without room go elsewhere, and the others are measured later."""
    file = wattdock.write(SWEEP)
    running = wattdock.start("run", file, stderr=subprocess.PIPE)
    wait_for(running, "left: 12 of 16 passes")
    filler = fill()
    _, err = running.communicate(timeout=600)
    assert running.returncode == STORE, err
    assert ("Traceback" in err, "No space left" in err) == (False, True)
    assert len(durable(wattdock)) >= 4
    rescued = [file.parent for file in (wattdock.home / "tmp").glob("wattdock-rescued-*/*/result.json")]
    assert rescued
    assert all(f"{folder.parent.name}/{folder.name} instead" in err for folder in rescued)
    filler.unlink()
    resumed = wattdock("run", file, "--resume", timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    assert passes([result for result in wattdock.results() if result["status"] == "ok"]) == EXPECTED


@pytest.mark.skipif(os.getuid() != 0, reason="another user's files are made by root")
def test_what_others_keep_to_themselves_in_one_results_folder_stops_nobody(wattdock: Command) -> None:
    """A study and a result of another user, closed to us: ours is measured and listed, and we are told what is not."""
    results = wattdock.folder / "results"
    results.mkdir()
    give_to_user(results)
    study, result = results / "studies" / "20990101T000000-theirs-12345678", results / "20260101T000000-fake-12345678"
    for folder in (study, result):
        folder.mkdir(parents=True)
    give_to_user(study.parent)
    (result / "result.json").write_text("{}")
    (result / "result.json").chmod(0o600)
    study.chmod(0o700)
    run = wattdock("run", *SINGLE, "--resume")
    assert run.returncode == 0, run.stderr
    listed = wattdock("results", "list")
    assert "1 result" in listed.stdout
    assert f"{result.name}/result.json: cannot be read (Permission denied)" in listed.stderr


def test_passes_from_before_and_after_a_reboot_are_each_read_by_their_own_clock(wattdock: Command) -> None:
    """A time namespace is what a reboot is to CLOCK_MONOTONIC: another zero. Both halves' instants overlap."""
    behind_s = round(time.monotonic()) - 60
    reboot = ("unshare", "--time", "--monotonic", f"-{behind_s}", "--fork", "--kill-child")
    if os.getuid() != 0 or subprocess.run([*reboot, "true"], capture_output=True, check=False).returncode:
        pytest.skip("another clock needs root and a kernel with time namespaces")
    file = wattdock.write(SLOW)
    running = wattdock.start("run", file, "--progress-json", env=on_gpus(wattdock, FakeGpu()), stderr=subprocess.PIPE)
    wait_in_pass(running, 2)
    wattdock.interrupt(signal.SIGKILL)
    running.communicate(timeout=60)
    # It also takes back what somebody had set. The GPU's course begins with the new clock.
    env = on_gpus(wattdock, FakeGpu(power_limit_w=650.0), origin_ns=0)
    resumed = wattdock.start("run", file, "--resume", env=env, stderr=subprocess.PIPE, within=reboot)
    _, err = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, err
    [result] = wattdock.results()
    spans = [span for span in result["spans"] if span["pass"] is not None]
    assert [span["clock"] for span in spans] == [0, 1]
    assert spans[1]["start_ns"] < spans[0]["start_ns"] - 60 * 10**9
    [check] = [check for check in result["audit"]["checks"] if check["name"] == "environment of the restarts"]
    assert check["status"] == "fail"
    assert check["figure"] == "GPU power limit, W: 700.0 (restart 1), 650.0 (restart 1)"
    for measured in result["energy"]["passes"]:
        expected_j = IDLE_W * measured["duration_s"]
        # Readings are late on a busy machine; another clock's would be late by minutes.
        assert measured["total_j"] == pytest.approx(expected_j, rel=0.25)
        assert measured["timing_j"] < 0.5 * measured["total_j"]
