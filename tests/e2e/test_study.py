"""Studies from outside: sweeps, shuffles, failures, interruptions, and coordinators that are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from command import Command

CONFIG, LAUNCH, RUNNER, STORE, INTERRUPTED = 2, 4, 5, 7, 130
HEAD = "defaults:\n  backend: fake\n  model: 'shape:tiny-llama'\n"
# Two loads × three batch sizes × two restarts × two passes of a fifth of a second.
SMALL = (
    HEAD + "  workload: {max_output_tokens: 10}\n  repeats: {restarts: 2, passes: 2}\n"
    "sweep:\n  workload.batch_size: {from: 1, to: 4, powers_of: 2}\n  fake.step_s: [0.008, 0.01]\n"
)
# Two experiments of two short passes on one runner.
ONE = HEAD + "  workload: {max_output_tokens: 10}\nsweep: {workload.batch_size: [1, 2]}\n"
# One experiment of passes of two seconds: time enough to do something to each.
SLOW = (
    HEAD + "  workload: {max_output_tokens: 20, batch_size: 1}\n  warmup: {passes: 0}\n  repeats: {passes: 3}\n"
    "  fake: {step_s: 0.05}\nexperiments: [{name: one}]\n"
)


def write(wattdock: Command, text: str) -> str:
    (wattdock.folder / "x.yaml").write_text(text)
    return "x.yaml"


def journal(wattdock: Command) -> list[dict[str, Any]]:
    # Killed before its first line, a study has not begun: the next run begins another.
    [file] = [file for file in _journals(wattdock) if file.stat().st_size]
    return [json.loads(line) for line in file.read_text().splitlines()]


def passes(rows: list[dict[str, Any]]) -> Counter[tuple[str, int, int]]:
    return Counter(
        (row["config"]["name"], one["restart"], one["pass"]) for row in rows for one in row["energy"]["passes"]
    )


def wait_for(running: subprocess.Popen[str], text: str) -> None:
    assert running.stderr is not None
    for line in running.stderr:
        if text in line:
            return
    pytest.fail(f"the command ended without a line that holds {text!r}")


def wait_in_pass(running: subprocess.Popen[str], number: int) -> None:
    """Return once `--progress-json` tells tokens of this pass, from 1; those before it are durable."""
    assert running.stderr is not None
    for line in running.stderr:
        event = json.loads(line)
        if event["event"] == "TokensSeen" and event["stage"].startswith(f"pass {number}/"):
            return
    pytest.fail(f"the command ended without a word from the middle of pass {number}")


def expected(wattdock: Command) -> set[tuple[str, int, int]]:
    names = [f"batch_size={size} step_s={step}" for size in (1, 2, 4) for step in ("0.008", "0.01")]
    return {(name, restart, number) for name in names for restart in (0, 1) for number in (0, 1)}


def test_a_study_killed_again_and_again_is_resumed_with_nothing_lost_and_nothing_measured_twice(
    wattdock: Command,
) -> None:
    """SIGKILL at random moments; in the end the table is that of a run that was left alone."""
    chance = random.Random(7)
    file = write(wattdock, SMALL)
    kept = 0
    for _ in range(3):
        running = wattdock.start("run", file, "--resume", stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.8, 4.0))
        wattdock.interrupt(signal.SIGKILL)
        running.wait(10)
        assert wattdock.left_after(15) == []
        known = [line for line in journal(wattdock) if line["event"] == "pass"] if _begun(wattdock) else []
        assert len(known) >= kept, "a pass that was durable is gone"
        kept = len(known)
    done = wattdock("run", file, "--resume", timeout=300)
    assert done.returncode == 0, done.stderr
    rows = wattdock.results()
    assert passes(rows) == dict.fromkeys(expected(wattdock), 1)
    assert {row["status"] for row in rows} == {"ok"}
    noted = Counter(
        (line["experiment"], line["restart"], line["pass"]) for line in journal(wattdock) if line["event"] == "pass"
    )
    assert set(noted.values()) == {1}
    assert len(noted) == 24
    assert all(row["performance"]["requests"] == 2 * 2 * 2 * row["config"]["workload"]["batch_size"] for row in rows)
    assert all(len(row["statistics"]["per_restart"]) == 2 for row in rows)
    after = wattdock("run", file, "--resume")
    assert after.returncode == 0
    assert "left: no pass, 0 s" in after.stderr
    assert len(wattdock.results()) == 6


def _journals(wattdock: Command) -> list[Path]:
    return list((wattdock.folder / "results" / "studies").glob("*/journal.jsonl"))


def _begun(wattdock: Command) -> bool:
    return any(file.stat().st_size for file in _journals(wattdock))


def test_a_study_that_changed_is_not_resumed_and_what_changed_is_said(wattdock: Command) -> None:
    """Half of one table and half of another would look like one."""
    assert wattdock("run", write(wattdock, ONE)).returncode == 0
    write(wattdock, ONE.replace("max_output_tokens: 10", "max_output_tokens: 11"))
    refused = wattdock("run", "x.yaml", "--resume")
    assert refused.returncode == CONFIG
    assert "workload.max_output_tokens 10 → 11" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_first_ctrl_c_lets_the_pass_end_and_the_study_goes_on_from_there(wattdock: Command) -> None:
    """The pass being measured counts; the row is marked until the rest is measured."""
    file = write(wattdock, SLOW)
    running = wattdock.start("run", file, "--progress-json", stderr=subprocess.PIPE)
    wait_in_pass(running, 2)
    wattdock.interrupt(signal.SIGINT)
    _, err = running.communicate(timeout=240)
    assert running.returncode == INTERRUPTED, err
    assert "Ctrl-C again stops now" in err
    [row] = wattdock.results()
    assert (row["status"], len(row["energy"]["passes"])) == ("interrupted", 2)
    assert row["error"]["stage"] == "pass 3/3, not begun"
    assert wattdock("run", file, "--resume").returncode == 0
    rows = sorted(wattdock.results(), key=lambda row: row["study"]["attempt"])
    assert [(row["status"], len(row["energy"]["passes"])) for row in rows] == [("interrupted", 2), ("ok", 3)]


def test_a_disk_that_fills_up_stops_a_study_which_goes_on_when_there_is_room(wattdock: Command) -> None:
    """What was durable is still there, what was not was put elsewhere, and the rest is measured later."""
    small = wattdock.folder / "results"
    small.mkdir()
    mount: list[str | Path] = ["mount", "-t", "tmpfs", "-o", "size=51m,mode=777", "none", small]
    if os.getuid() != 0 or subprocess.run(mount).returncode:
        pytest.skip("mounting a small file system needs root and CAP_SYS_ADMIN")
    try:
        file = write(wattdock, SMALL)
        running = wattdock.start("run", file, stderr=subprocess.PIPE)
        wait_for(running, "left: 18 passes")
        filler = small / ".filler"
        with filler.open("wb", buffering=0) as out:
            while _fits(out.write, b"\0" * 65536):
                pass
        _, err = running.communicate(timeout=240)
        assert running.returncode == STORE, err
        assert "Traceback" not in err
        assert "No space left" in err
        before = [line for line in journal(wattdock) if line["event"] == "pass"]
        assert len(before) >= 6
        filler.unlink()
        resumed = wattdock("run", file, "--resume", timeout=300)
        assert resumed.returncode == 0, resumed.stderr
        rows = [row for row in wattdock.results() if row["status"] == "ok"]
        assert passes(rows) == dict.fromkeys(expected(wattdock), 1)
    finally:
        subprocess.run(["umount", small], check=True)


def _fits(write: Any, data: bytes) -> bool:
    try:
        return bool(write(data))
    except OSError:
        return False


def test_points_that_cannot_be_are_refused_before_anything_is_measured(wattdock: Command) -> None:
    """`plan` shows them all, `run` does not begin."""
    file = write(wattdock, HEAD + "sweep: {workload.arrival: [batch, single], workload.batch_size: [1, 2]}\n")
    refused = wattdock("run", file)
    assert refused.returncode == CONFIG
    assert "1 of 4 points cannot be experiments" in refused.stderr
    assert not (wattdock.folder / "results").exists()
    planned = wattdock("plan", file)
    assert planned.returncode == CONFIG
    assert "invalid: arrival=single batch_size=2: " in planned.stdout
    assert "3 experiments, 1 load group," in planned.stdout


def test_a_plan_says_what_it_could_not_check_and_refuses_an_arrival_that_is_not_offered(wattdock: Command) -> None:
    """Names that only the engine knows are named; that PyTorch serves no closed loop is seen without starting it."""
    fake = ("--backend", "fake", "--model", "shape:tiny-llama")
    planned = wattdock("plan", *fake, "--set", "fake.step_s=0.01", "--set", "fake.another=1")
    assert planned.returncode == 0, planned.stderr
    said = "not checked: fake.step_s, fake.another, arrival: batch; only fake's runner knows what its engine takes"
    assert said in planned.stdout
    assert "not checked" not in wattdock("plan", "--backend", "pytorch", "--accelerator", "cpu").stdout
    on_hub = wattdock("plan", *fake[:2], "--model", "nobody/nothing").stdout
    assert "not checked: nobody/nothing; a hub is asked for a model when its turn comes" in on_hub
    for verb in ("plan", "run"):
        refused = wattdock(verb, "--backend", "pytorch", "--set", "workload.arrival=closed")
        assert refused.returncode == CONFIG
        assert "workload.arrival: closed is not among what pytorch can serve: batch, single" in refused.stderr
    assert not (wattdock.folder / "results").exists()


def test_results_are_listed_queried_and_exported(wattdock: Command) -> None:
    """One study, three ways to look at it."""
    assert wattdock("run", write(wattdock, ONE)).returncode == 0
    assert "2 results" in wattdock("results", "list", "--backend", "fake").stdout
    assert len(json.loads(wattdock("results", "list", "--json", "--limit", "1").stdout)) == 1
    sql = "SELECT batch_size, count(*) AS n FROM results JOIN passes USING (folder) GROUP BY ALL ORDER BY 1"
    asked = wattdock("results", "query", sql, "--json")
    assert json.loads(asked.stdout) == [{"batch_size": size, "n": 2} for size in (1, 2)]
    requests = json.loads(wattdock("results", "query", "SELECT count(*) AS n FROM requests", "--json").stdout)
    assert requests == [{"n": 2 * 2 * (1 + 2)}]
    assert wattdock("results", "export", "--csv", "all.csv").stdout == "2 results written to all.csv\n"
    assert len((wattdock.folder / "all.csv").read_text().splitlines()) == 3
    assert wattdock("results", "query", "DROP nonsense").returncode == CONFIG


@pytest.mark.skipif(os.getuid() != 0, reason="another user's files are made by root")
def test_what_others_keep_to_themselves_in_one_results_folder_stops_nobody(wattdock: Command) -> None:
    """A study and a row of another user, closed to us: we resume and list ours, and are told what is left out."""
    file = write(wattdock, ONE)
    assert wattdock("run", file).returncode == 0
    results = wattdock.folder / "results"
    study, row = results / "studies" / "20990101T000000-theirs-12345678", results / "20260101T000000-fake-12345678"
    for folder in (study, row):
        folder.mkdir()
    (row / "result.json").write_text("{}")
    (row / "result.json").chmod(0o600)
    study.chmod(0o700)
    resumed = wattdock("run", file, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    listed = wattdock("results", "list")
    assert "2 results" in listed.stdout
    assert f"{row.name}/result.json: cannot be read; see its owner and mode; left out" in listed.stderr
