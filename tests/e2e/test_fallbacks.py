"""`on_failure: fallback` and causes of failures from outside, with the fake engine that serves so many and no more."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from command import on_gpus
from e2e.test_study import HEAD, journal, wait_for, wait_in_pass, write
from fake_nvml import FakeGpu, uuid_of

if TYPE_CHECKING:
    from command import Command

RUNNER = 5
# Eight and four in flight are too many, two are not.
TIGHT = (
    HEAD + "  on_failure: fallback\n  repeats: {passes: 1}\n  workload: {max_output_tokens: 4}\n"
    "experiments:\n- {name: asked, workload: {batch_size: 8}, fake: {most_in_flight: 2}}\n"
)


def rows(wattdock: Command) -> dict[str, dict[str, Any]]:
    """Return the rows by how they differ from what was asked for."""
    return {(row["fallback"] or {"change": "asked"})["change"]: row for row in wattdock.results()}


def test_a_ladder_is_walked_until_one_works_and_none_stands_for_what_was_asked(wattdock: Command) -> None:
    """Three rows: what was asked for stays failed, and the exit code is its."""
    done = wattdock("run", write(wattdock, TIGHT))
    assert done.returncode == RUNNER, done.stderr
    found = rows(wattdock)
    asked, four, two = (found[name] for name in ("asked", "workload.batch_size: 4", "workload.batch_size: 2"))
    assert len(found) == 3
    assert [row["status"] for row in (asked, four, two)] == ["failed", "failed", "ok"]
    assert [row["error"]["cause"] for row in (asked, four)] == ["KV cache too small"] * 2
    assert "batch_size" in asked["error"]["advice"]
    assert [row["fallback"]["step"] for row in (four, two)] == [1, 2]
    assert {row["fallback"]["fallback_of"] for row in (four, two)} == {asked["experiment_id"]}
    assert len({row["experiment_id"] for row in found.values()}) == 3
    assert two["config"]["workload"]["batch_size"] == 2
    stated = [line for line in done.stderr.splitlines() if "measured instead, until one works" in line]
    assert len(stated) == 1
    assert "1. workload.batch_size: 4; 2. workload.batch_size: 2" in stated[0]
    assert done.stdout.index("asked ") < done.stdout.index("fallback workload.batch_size: 4")
    assert journal(wattdock)[-1]["event"] == "ended"
    assert wattdock.left_after(5) == []


def test_queries_tell_a_fallback_from_what_was_asked(wattdock: Command) -> None:
    """Whoever averages rows can leave them out."""
    wattdock("run", write(wattdock, TIGHT))
    asked = "SELECT name, error_cause FROM results WHERE fallback_of IS NULL"
    done = wattdock("results", "query", asked, "--json")
    assert json.loads(done.stdout) == [{"name": "asked", "error_cause": "KV cache too small"}]


def test_without_fallback_a_failure_is_one_row(wattdock: Command) -> None:
    """It is off unless it was asked for."""
    done = wattdock("run", write(wattdock, TIGHT.replace("  on_failure: fallback\n", "")))
    assert done.returncode == RUNNER
    assert list(rows(wattdock)) == ["asked"]


def test_a_resumed_ladder_goes_on_where_it_was_and_measures_nothing_twice(wattdock: Command) -> None:
    """Killed in its last step; then complete, and a third time there is nothing to do."""
    text = TIGHT.replace("most_in_flight: 2", "most_in_flight: 2, step_s: 0.5")
    running = wattdock.start("run", write(wattdock, text), stderr=subprocess.PIPE)
    wait_for(running, "batch_size: 2: restart 1")
    wattdock.interrupt(signal.SIGKILL)
    running.wait(10)
    assert running.stderr is not None
    running.stderr.close()
    assert [row["status"] for row in wattdock.results()] == ["failed", "failed"]
    for _ in range(2):
        assert wattdock("run", write(wattdock, text), "--resume").returncode == RUNNER
        assert sorted(row["status"] for row in wattdock.results()) == ["failed", "failed", "ok"]


def test_a_fallback_begun_on_other_gpus_is_left_for_them_and_the_study_goes_on(wattdock: Command) -> None:
    """One line instead of an end in the middle; on its own GPUs it is gone on with."""
    env = on_gpus(wattdock, FakeGpu(uuid=uuid_of(1)), FakeGpu(uuid=uuid_of(2)))
    first, second = ({**env, "CUDA_VISIBLE_DEVICES": one} for one in "01")
    text = TIGHT.replace("passes: 1}", "passes: 2}\n  warmup: {passes: 0}").replace("tokens: 4}", "tokens: 40}")
    text = text.replace("most_in_flight: 2", "most_in_flight: 2, step_s: 0.08")
    text = "order: written\n" + text + "- {name: after, workload: {batch_size: 1}, repeats: {passes: 1}}\n"
    running = wattdock.start("run", write(wattdock, text), env=first, stderr=subprocess.PIPE)
    wait_in_pass(running, 2)
    wattdock.interrupt(signal.SIGKILL)
    running.communicate(timeout=60)
    assert [row["status"] for row in wattdock.results()] == ["failed", "failed"]
    elsewhere = wattdock("run", "x.yaml", "--resume", env=second)
    assert elsewhere.returncode == RUNNER, elsewhere.stderr
    assert "fallback workload.batch_size: 2: left unfinished: " in elsewhere.stderr
    assert f" was measured on {uuid_of(1)}, and this run would take {uuid_of(2)}; " in elsewhere.stderr
    assert "Traceback" not in elsewhere.stderr
    assert [row["config"]["name"] for row in wattdock.results() if row["status"] == "ok"] == ["after"]
    assert journal(wattdock)[-1]["event"] != "ended"
    assert wattdock("run", "x.yaml", "--resume", env=first).returncode == RUNNER
    row = rows(wattdock)["workload.batch_size: 2"]
    assert (row["status"], len(row["energy"]["passes"])) == ("ok", 2)
    assert journal(wattdock)[-1]["event"] == "ended"


def test_a_fallback_that_the_study_asks_for_itself_is_measured_once_and_as_itself(wattdock: Command) -> None:
    """It is no fallback then, and the ladder goes on without it."""
    both = TIGHT + "- {name: four, workload: {batch_size: 4}, fake: {most_in_flight: 2}}\n"
    wattdock("run", write(wattdock, both))
    by_size = sorted((row["config"]["workload"]["batch_size"], bool(row["fallback"])) for row in wattdock.results())
    assert by_size == [(2, True), (4, False), (8, False)]


def test_a_replica_killed_mid_pass_is_a_classified_row_and_no_process_is_left(wattdock: Command) -> None:
    """On simulated GPUs; its lease is free again."""
    env = on_gpus(wattdock, FakeGpu(uuid=uuid_of(1)), FakeGpu(uuid=uuid_of(2)))
    words = ("--backend", "fake", "--model", "shape:tiny-llama", "--gpus", "0,1", "--min-duration-s", "60")
    running = wattdock.start(
        "run", *words, "--set", "fake.data_parallel_size=2", env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    wait_for(running, "restart 1")
    victims = [pid for pid, line in wattdock.processes().items() if "wattdock_runner.worker" in line]
    assert len(victims) == 2
    subprocess.run(["kill", "-KILL", str(victims[0])], check=True)
    _, err = running.communicate(timeout=240)
    assert running.returncode == RUNNER, err
    [row] = wattdock.results()
    assert row["error"]["cause"] == "worker died"
    assert "killed by SIGKILL" in row["error"]["message"]
    assert row["environment"]["parallelism"]["kind"] == "data"
    assert wattdock.left_after(5) == []
