"""What a backend finds in its own environment, on the GPUs chosen, held against what the host knows."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.checks.doctor.finding import Finding, ok, warn
from wattdock.host import leases
from wattdock.launch import LaunchSpec
from wattdock.runner import RunnerClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wattdock.checks.preflight import ExecutionPlan
    from wattdock.host import Link
    from wattdock_proto.v1 import runner_pb2 as pb

DIAGNOSE_S = 300.0
# What a runner calls the figure that links are judged by; its value begins with GB/s.
BUS_BANDWIDTH = "all-reduce"
# Of what the links carry in one direction; large all-reduces reach 70 to 90 % where nothing is wrong.
LEAST_SHARE = 0.5
# Source: NVIDIA's data sheets, GB/s of one link in one direction.
NVLINK_GB_S = {"1.0": 20.0, "2.0": 25.0, "2.2": 25.0, "3.0": 25.0, "3.1": 25.0, "4.0": 25.0, "5.0": 50.0}
# Source: PCI-SIG, GB/s of one lane in one direction after encoding.
PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


def engine_findings(ready: ExecutionPlan, say: Callable[[str], None]) -> Iterable[Finding]:
    """Yield what the backend's runner says, started as for a measurement and holding its leases.

    Raises:
        WattdockError: The leases cannot be had, or the runner cannot be started or asked.
    """
    wanted = leases.Wanted(ready.lease_names, ready.config.exclusive, "doctor", ready.config.wait_s)
    with ExitStack() as stack:
        lease_fds = stack.enter_context(leases.held(wanted, say))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        launcher = stack.enter_context(ready.launcher(say))
        runner = stack.enter_context(launcher.launch(_launch_spec(ready, folder / "runner.log", lease_fds)))
        client = stack.enter_context(RunnerClient(runner))
        described = client.wait_ready(ready.config.timeouts.launch_s)
        yield ok(ready.config.backend, f"{described.framework} {described.framework_version}")
        trip_ns = client.check_clock().round_trip_ns
        yield ok("runner's clock", f"the host's, to within {trip_ns / 1e6:.2f} ms")
        yield from judged(client.diagnose(DIAGNOSE_S), ready)
    if len(ready.gpus) == 1 < len(ready.inventory.gpus):
        yield ok(BUS_BANDWIDTH, f"not timed: the runner had GPU {ready.gpus[0].index} alone; --gpus names several")


def _launch_spec(ready: ExecutionPlan, log: Path, lease_fds: tuple[int, ...]) -> LaunchSpec:
    return LaunchSpec(
        backend=ready.config.backend,
        runner_dir=ready.runner_dir,
        log_path=log,
        gpu_indices=tuple(gpu.index for gpu in ready.gpus),
        gpu_uuids=tuple(gpu.uuid for gpu in ready.gpus),
        labels={"experiment": "doctor"},
        lease_fds=lease_fds,
    )


def judged(findings: Iterable[pb.Finding], ready: ExecutionPlan) -> Iterable[Finding]:
    """Yield the runner's own findings; bandwidth is held against what the host says the links carry."""
    gpus = {gpu.uuid: gpu for gpu in ready.gpus}
    for one in findings:
        status = one.status if one.status in ("ok", "warn", "fail") else "warn"
        seen = Finding(one.name, status, one.value, one.advice)  # type: ignore[arg-type]
        if one.name == BUS_BANDWIDTH and status == "ok":
            first = ready.gpus[0]
            links = ready.inventory.links_among(gpus.keys())
            expected = link_gb_s(links, first.nvlink_version, (first.pcie_generation_max, first.pcie_width_max))
            seen = bandwidth_finding(one.value, expected)
        yield seen


def link_gb_s(links: Sequence[Link], nvlink_version: str | None, pcie: tuple[int | None, int | None]) -> float | None:
    """Return what the slowest of some links carries in one direction, GB/s; None where that is not known."""
    if not links:
        return None
    slowest = min(links, key=lambda link: link.rank)
    if slowest.nvlinks:
        per_link = NVLINK_GB_S.get(nvlink_version or "")
        return None if per_link is None else slowest.nvlinks * per_link
    generation, width = pcie
    lane = PCIE_LANE_GB_S.get(generation or 0)
    return None if lane is None or width is None else lane * width


def bandwidth_finding(value: str, expected_gb_s: float | None) -> Finding:
    """Return what a timed all-reduce says of the links.

    Args:
        value: Begins with the bus bandwidth in GB/s.
        expected_gb_s: What the slowest link carries in one direction.
    """
    if expected_gb_s is None:
        return ok(BUS_BANDWIDTH, f"{value}; what the links carry is not known")
    share = float(value.split()[0]) / expected_gb_s
    seen = f"{value}, {share:.0%} of the {expected_gb_s:.0f} GB/s that the slowest link carries one way"
    if share < LEAST_SHARE:
        advice = "look at NCCL_DEBUG=INFO for the path it took; peer access or NVLink may be off"
        return warn(BUS_BANDWIDTH, seen, advice)
    return ok(BUS_BANDWIDTH, seen)
