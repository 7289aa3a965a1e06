"""A model over two nodes: one timeline, one result, and nothing left running whatever ends."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from nodes.two_nodes import BYSTANDER, HEAD_GPU, HEAD_W, NODE_GPU, NODE_W, TwoNodes, two_nodes

if TYPE_CHECKING:
    import subprocess

    from command import Command

RUNNER, METER, INTERRUPTED = 5, 6, 130
LONGEST_S = 120
STUDY = """
backend: fake
model: shape:tiny-llama
fake: {{step_s: 0.05}}
gpus: {{count: 1}}
launcher: process
repeats: {{passes: {passes}}}
workload: {{batch_size: 2, max_output_tokens: {tokens}}}
warmup: {{passes: 0}}
nodes: {{agents: ['{address}'], pairing: pair.pem}}
"""


def study(nodes: TwoNodes, *, passes: int = 1, tokens: int = 20) -> str:
    return nodes.command.write(STUDY.format(address=nodes.address, passes=passes, tokens=tokens))


def ended(process: subprocess.Popen[str], code: int) -> str:
    """Return what a run said, once it has ended as it should."""
    _, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return err


def begun(process: subprocess.Popen[str]) -> None:
    """Wait until a pass has begun."""
    assert process.stderr
    for line in process.stderr:
        if "begins" in line:
            return
    raise AssertionError("no pass began")


@pytest.mark.parametrize(
    ("offset_s", "delays_s"),
    [(0, None), (1, (0.001, 0.001)), (3 * 86_400, (0.0002, 0.004))],
    ids=["same", "1 s, 2 ms", "3 days, one-sided"],
)
def test_joules_of_both_nodes_are_of_the_same_seconds(
    wattdock: Command, offset_s: int, delays_s: tuple[float, float] | None
) -> None:
    """300 and 200 W for as long as the pass lasted by the head's clock, whatever the node's clock shows."""
    with two_nodes(wattdock, offset_s=offset_s, delays_s=delays_s) as nodes:
        ended(nodes.run(study(nodes)), 0)
    [result] = wattdock.results()
    energy, seconds = result["energy"], result["performance"]["duration_s"]
    assert energy["per_gpu_j"][HEAD_GPU] == pytest.approx(HEAD_W * seconds, rel=0.02)
    assert energy["per_gpu_j"][NODE_GPU] == pytest.approx(NODE_W * seconds, rel=0.02)
    assert energy["total_j"] == pytest.approx((HEAD_W + NODE_W) * seconds, abs=4 * energy["timing_j"] + 0.5)
    assert energy["bystander_j"][BYSTANDER] > 0
    environment = result["environment"]
    assert (environment["gpu_count"], environment["gpu_uuids"]) == (2, [HEAD_GPU, NODE_GPU])
    [node] = environment["nodes"]
    assert (node["name"], node["gpu_uuids"]) == (nodes.address, [NODE_GPU, BYSTANDER])
    assert node["round_trip_s"] >= sum(delays_s or ())
    assert node["clock_uncertainty_s"] == pytest.approx(0.95 * node["round_trip_s"] / 2 / 1.96)
    assert wattdock.left_after() == []


def test_a_link_that_is_too_slow_is_refused_with_the_figure(wattdock: Command) -> None:
    """40 ms of round trip, and 700 W: 13 J. Nothing is started."""
    with two_nodes(wattdock, delays_s=(0.02, 0.02)) as nodes:
        said = ended(nodes.run(study(nodes)), METER)
    [line] = [line for line in said.splitlines() if line.startswith("wattdock: ")]
    assert float(line.partition("off by ")[2].split()[0]) == pytest.approx(13.3, abs=2)
    assert "nodes.clock_limit_j" in line
    assert wattdock.results() == []


def test_a_killed_head_leaves_nothing_running_and_the_agent_serves_the_next(wattdock: Command) -> None:
    """The second head gets the leases that the first one's session held."""
    with two_nodes(wattdock) as nodes:
        process = nodes.run(study(nodes, tokens=2_000))
        begun(process)
        nodes.end(" run ", signal.SIGKILL)
        process.communicate(timeout=LONGEST_S)
        nodes.wait_for("everything of it has ended")
        runners = [line for line in wattdock.running() if "wattdock_runner" in line]
        assert runners == []
        ended(nodes.run(study(nodes)), 0)


def failed(wattdock: Command) -> dict[str, Any]:
    """Return the error of the only result."""
    [result] = wattdock.results()
    assert result["status"] == "failed"
    error: dict[str, Any] = result["error"]
    return error


def test_a_killed_agent_is_a_failed_row_and_nothing_runs_on(wattdock: Command) -> None:
    """The keeper of the node's runner ends it; the head ends its own."""
    with two_nodes(wattdock) as nodes:
        process = nodes.run(study(nodes, tokens=2_000))
        begun(process)
        nodes.end(number=signal.SIGKILL)
        ended(process, RUNNER)
        assert failed(wattdock)["cause"] == "node lost"
        assert wattdock.left_after() == []


def test_a_cut_link_is_a_failed_row_and_both_sides_end(wattdock: Command) -> None:
    """No packet says so: each side notices the silence."""
    with two_nodes(wattdock) as nodes:
        process = nodes.run(study(nodes, tokens=2_000))
        begun(process)
        nodes.cut()
        cut_s = time.monotonic()
        ended(process, RUNNER)
        error = failed(wattdock)
        assert (error["cause"], nodes.address in error["message"]) == ("node lost", True)
        nodes.wait_for("everything of it has ended")
        assert time.monotonic() - cut_s < 90
        assert [line for line in wattdock.running() if "wattdock_runner" in line] == []


def test_a_killed_runner_of_a_node_is_a_failed_row_and_the_agent_stays(wattdock: Command) -> None:
    """Its agent tells the head within a second, and serves the next study."""
    with two_nodes(wattdock) as nodes:
        process = nodes.run(study(nodes, tokens=2_000))
        begun(process)
        nodes.kill_runner()
        ended(process, RUNNER)
        error = failed(wattdock)
        assert (error["cause"], "its runner" in error["message"]) == ("node lost", True)
        nodes.wait_for("everything of it has ended")
        ended(nodes.run(study(nodes)), 0)


def test_a_load_that_hangs_on_every_node_ends_with_ctrl_c(wattdock: Command) -> None:
    """An agent ends what it does for the head as soon as the head gives that up, and serves the next study."""
    with two_nodes(wattdock) as nodes:
        process = nodes.run(study(nodes), "--set", "fake.load_s=600")
        nodes.wait_for("pretending to load")
        asked_s = time.monotonic()
        nodes.end(" run ", signal.SIGINT)
        ended(process, INTERRUPTED)
        assert time.monotonic() - asked_s < 60
        nodes.wait_for("everything of it has ended")
        assert [line for line in wattdock.running() if "wattdock_runner" in line] == []
        ended(nodes.run(study(nodes)), 0)
