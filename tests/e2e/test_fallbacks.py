"""`on_failure: fallback` and causes of failures from outside, with the fake engine that serves so many and no more."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from command import on_gpus
from e2e.test_study import HEAD, wait_for, write
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


def test_queries_tell_a_fallback_from_what_was_asked(wattdock: Command) -> None:
    """Whoever averages rows can leave them out."""
    wattdock("run", write(wattdock, TIGHT))
    asked = "SELECT name, error_cause FROM results WHERE fallback_of IS NULL"
    done = wattdock("results", "query", asked, "--json")
    assert json.loads(done.stdout) == [{"name": "asked", "error_cause": "KV cache too small"}]


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
