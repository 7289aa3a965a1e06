"""Checks on who else was there. Pure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from seams.analysis import GpuResult, ListedProcess
from seams.audit import AuditInput, cpus_alone, gpus_alone, machine_alone, other_gpus_idle

from wattdock.host.jobs import Job

if TYPE_CHECKING:
    from wattdock.audit import Outcome

SHARING = {
    "other measurements": machine_alone,
    "CPU use by others": cpus_alone,
    "processes on the GPUs": gpus_alone,
    "other GPUs": other_gpus_idle,
}


def process(pid: int, gpu: str = "GPU-a", *, of_runner: bool = False) -> ListedProcess:
    return ListedProcess(
        gpu_uuid=gpu,
        pid=pid,
        kind="compute",
        of_runner=of_runner,
        user="bob",
    )


def outcome(
    *processes: ListedProcess,
    exclusive: str = "machine",
    used: tuple[str, ...] = ("GPU-a",),
    leased: tuple[str, ...] = (),
    cpu_others: tuple[float | None, ...] = (0.02,),
    lease_faults: tuple[str | None, ...] = (None,),
    job: Job | None = None,
    above_idle_w: float | None = 0.0,
    third_above_w: float | None = 0.0,
    server_url: str = "",
    others_counted: bool = False,
) -> dict[str, Outcome]:
    lists = {process.gpu_uuid: 4 for process in processes if process.of_runner}
    gpus = {
        uuid: GpuResult(used=uuid in used, process_lists=4, runner_lists=lists.get(uuid, 0), above_idle_w=above_idle_w)
        for uuid in ("GPU-a", "GPU-b")
    }
    gpus["GPU-c"] = GpuResult(used="GPU-c" in used, above_idle_w=third_above_w)
    passes = [SimpleNamespace(cpu_others_share=share, lease_fault=None) for share in cpu_others]
    passes += [SimpleNamespace(cpu_others_share=cpu_others[0], lease_fault=fault) for fault in lease_faults if fault]
    energy: Any = SimpleNamespace(gpu_processes=list(processes), passes=passes)
    environment: Any = SimpleNamespace(
        gpu_uuids=list(used), leased_gpus=list(leased or used), exclusive=exclusive, job=job, host_gpus=[0, 1]
    )
    config = SimpleNamespace(section=SimpleNamespace(server_url=server_url))
    speed = SimpleNamespace(serving=SimpleNamespace(others_counted=others_counted))
    result: Any = SimpleNamespace(
        gpus=gpus, config=config, environment=environment, energy=energy, procedure="", performance=speed
    )
    subject = AuditInput(result)
    return {name: outcome for name, examine in SHARING.items() if (outcome := examine(subject))}


@pytest.mark.parametrize(
    ("processes", "status", "stranger"),
    [
        ([process(1, of_runner=True)], "pass", ""),
        ([process(1, of_runner=True), process(9)], "fail", "9 (bob, "),
        ([process(9)], "unknown", "9 (bob, "),
        ([], "unknown", ""),
    ],
)
def test_gpus_are_exclusive_only_where_the_lists_show_the_runner_and_nobody_else(
    processes: list[ListedProcess], status: str, stranger: str
) -> None:
    """A list that shows not even the runner shows nothing; unknown never passes, and a stranger is named."""
    check = outcome(*processes)["processes on the GPUs"]
    assert check.status == status
    assert stranger in check.figure


def test_each_gpu_that_was_used_has_to_show_the_runner() -> None:
    """One whose driver lists nobody could hide anybody; one that was leased and not used shows nobody."""
    two = ("GPU-a", "GPU-b")
    check = outcome(process(1, of_runner=True), used=two)["processes on the GPUs"]
    assert (check.status, "GPU-b" in check.figure) == ("unknown", True)
    both = outcome(process(1, of_runner=True), process(2, "GPU-b", of_runner=True), used=two)
    assert both["processes on the GPUs"].status == "pass"
    assert outcome(process(1, of_runner=True), leased=two)["processes on the GPUs"].status == "pass"
    assert outcome(process(1, "GPU-c", of_runner=True), used=("GPU-c",))["processes on the GPUs"].status == "unknown"


@pytest.mark.parametrize(
    ("above_idle_w", "empty", "listed"), [(19, "pass", "warn"), (21, "fail", "fail"), (None, "unknown", "unknown")]
)
def test_others_on_other_gpus_are_told_and_refuse_where_they_draw_power(
    above_idle_w: float | None, empty: str, listed: str
) -> None:
    """A process that only holds memory disturbs nobody; a context draws 41 W."""
    alone = outcome(process(1, of_runner=True), above_idle_w=above_idle_w)
    beside = outcome(process(1, of_runner=True), process(9, "GPU-b"), above_idle_w=above_idle_w)
    assert (alone["other GPUs"].status, beside["other GPUs"].status) == (empty, listed)
    assert "; process 9 (bob, " in beside["other GPUs"].figure
    assert beside["processes on the GPUs"].status == "pass"


@pytest.mark.parametrize(("above_w", "status"), [((41, None), "fail"), ((None, 41), "fail"), ((0, None), "unknown")])
def test_a_gpu_that_draws_power_is_wrong_though_another_is_unknown(
    above_w: tuple[float | None, float | None], status: str
) -> None:
    """Whichever comes first."""
    check = outcome(process(1, of_runner=True), above_idle_w=above_w[0], third_above_w=above_w[1])["other GPUs"]
    assert (check.status, "unknown before the runner" in check.figure) == (status, True)


def test_a_shared_machine_is_a_failed_check_and_a_run_on_the_cpu_has_no_gpus_to_check() -> None:
    """It was asked for, and it is not publishable."""
    assert outcome(exclusive="gpus")["other measurements"][:2] == ("fail", "allowed by exclusive: gpus")
    assert "processes on the GPUs" not in outcome(used=())


def test_a_machine_whose_leases_did_not_hold_in_a_pass_is_not_to_itself() -> None:
    """Whether they were lost, or others do not look where they are; each reason is told once."""
    check = outcome(lease_faults=(None, "the lease x was removed", "the lease x was removed"))["other measurements"]
    assert (check.status, check.figure) == ("fail", "the lease x was removed")
    assert outcome(lease_faults=(None, None))["other measurements"].status == "pass"


@pytest.mark.parametrize(("url", "counted", "status"), [("http://a", False, "unknown"), ("http://a", True, "pass")])
def test_others_requests_are_told_by_a_found_server_that_counts_all_tokens(
    url: str, counted: bool, status: str
) -> None:
    """One that wattdock started serves nobody else, whether it counts or not."""
    assert outcome(server_url=url, others_counted=counted)["other measurements"].status == status
    assert outcome(others_counted=counted)["other measurements"].status == "pass"


@pytest.mark.parametrize(
    ("shares", "status", "worst"),
    [
        ((0.02, 0.1), "pass", "10%"),
        ((0.02, 0.35), "fail", "35%"),
        ((0.02, None), "unknown", "2% in the worst pass; unknown in 1 pass"),
        ((0.35, None), "fail", "35% in the worst pass; unknown in 1 pass"),
        ((None,), "unknown", "unknown"),
        ((), "unknown", "unknown"),
    ],
)
def test_whoever_else_uses_the_cpus_in_any_pass_is_seen(
    shares: tuple[float | None, ...], status: str, worst: str
) -> None:
    """People who do not use wattdock hold no lease; a pass that nobody could look at is not a quiet one."""
    check = outcome(cpu_others=shares)["CPU use by others"]
    assert (check.status, worst in check.figure) == (status, True)


@pytest.mark.parametrize(
    ("exclusive", "node_gpus", "gpus", "status", "figure"),
    [
        (True, 8, 2, "pass", "none by wattdock; job 7_1 had n1 alone"),
        (False, 8, 8, "pass", "none by wattdock; job 7_1 had all 8 GPUs of n1 alone"),
        (False, 2, None, "pass", "n1 is shared; 2 of 2 GPUs visible"),
        (False, 8, 2, "unknown", "n1 is shared; 2 of 8 GPUs visible"),
        (None, None, None, "unknown", "n1 may be shared; 2 GPUs visible"),
    ],
)
def test_who_uses_gpus_that_a_scheduler_hides_is_unknown(
    exclusive: bool | None, node_gpus: int | None, gpus: int | None, status: str, figure: str
) -> None:
    """Two GPUs are visible; where all are, the process lists tell their users, unless one job has all of them."""
    job = Job(id="7_1", node="n1", exclusive=exclusive, node_gpus=node_gpus, gpus=gpus)
    check = outcome(job=job)["other measurements"]
    assert (check.status, check.figure) == (status, figure)
