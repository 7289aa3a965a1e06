"""The audit finds what is wrong with an experiment, and nothing wrong with a sound one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fake_nvml import FakeProcess, constant
from make.audit_world import IMAGE, OTHER, POWER, RUNNER, USED, World, launched, result_of
from seams.analysis import NORMAL95, GpuResult, Performance, WarmUp, serving
from seams.audit import AuditInput, arrivals_kept_up_with, client_keeps_up, gpus_fed, warm_up_converged

from wattdock.config import ExperimentConfig
from wattdock.launch import LauncherChoice

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.analysis import Check, ExperimentResult


@pytest.fixture(scope="module")
def sound(library: Path) -> ExperimentResult:
    return result_of(World(recordings=3), library)


def checks(result: ExperimentResult) -> dict[str, Check]:
    assert result.audit is not None
    return {check.name: check for check in result.audit.checks}


def failed(result: ExperimentResult) -> dict[str, Check]:
    """Return the checks that keep a result from being published."""
    return {name: check for name, check in checks(result).items() if check.status in ("fail", "unknown")}


def test_a_sound_experiment_has_nothing_wrong_and_may_be_published(sound: ExperimentResult) -> None:
    """Without this, a check that always fails would pass every test below."""
    assert failed(sound) == {}
    assert sound.audit is not None
    assert (sound.audit.publishable, sound.audit.reasons) == (True, [])


def test_merged_energy_is_within_two_thousandths_of_the_truth_over_twenty_seconds(sound: ExperimentResult) -> None:
    """500 W for 25 s, six times; of it 382 W above idle with the model loaded."""
    assert sound.energy is not None
    for measured in sound.energy.passes:
        assert measured.total_j == pytest.approx(12_500, rel=0.002)
    assert sound.energy.net_j == pytest.approx(6 * 25 * (500 - 118), rel=0.003)
    # Idle power is as before in this world: what is left is when the passes and the idle spans began and ended.
    assert sound.energy.net_uncertainty_j is not None
    assert sound.energy.uncertainty.timing_j is not None
    assert sound.energy.uncertainty.timing_j < sound.energy.net_uncertainty_j < 25
    assert sound.energy.net_j == pytest.approx(6 * 25 * (500 - 118), abs=NORMAL95 * sound.energy.net_uncertainty_j)
    # 0.6 of every 5 s are prefill at the same 500 W; nothing lies between rounds.
    assert sound.energy.phases is not None
    assert sound.energy.phases.prefill_j == pytest.approx(6 * 5 * 0.6 * 500, rel=0.01)
    assert sound.energy.phases.decode_j == pytest.approx(6 * 5 * 4.4 * 500, rel=0.01)


def test_the_memorys_part_is_known_and_stands_beside_the_speed(sound: ExperimentResult) -> None:
    """0.15 of 500 W, which is a part of the board's joules and not added to them."""
    energy, compute = sound.energy, sound.compute
    assert energy is not None
    assert compute is not None
    assert (energy.hbm_j, energy.hbm95_j, energy.hbm_reason) != (None, None, None)
    assert energy.hbm_reason is None
    assert energy.hbm_j == pytest.approx(6 * 25 * 75, abs=energy.hbm95_j)
    assert energy.mean_hbm_power_w == pytest.approx(75, rel=0.01)
    assert energy.total_j == pytest.approx(6 * 25 * 500, rel=0.002)
    assert (compute.hbm_j_per_byte_most or 0.0) > 0
    assert "75 W" in checks(sound)["possible speed"].figure


@pytest.mark.parametrize(
    ("arrivals", "share", "slope", "status"),
    [
        (600, 0.011, 0.005, "pass"),
        (600, 0.011, 0.041, "fail"),
        (8, 0.011, 0.041, "unknown"),
        (8, 0.011, 0.005, "pass"),
        (8, 0.3, 0.041, "unknown"),
        (40, 0.3, 0.005, "fail"),
        (40, 0.011, 0.041, "fail"),
        (1, 0.011, None, "unknown"),
        (600, None, None, "unknown"),
    ],
)
def test_a_few_arrivals_tell_no_queue_that_grows(
    arrivals: int, share: float | None, slope: float | None, status: str
) -> None:
    """Eight that waited longer from one to the next may have met a long prompt; forty met a queue."""
    figures: dict[str, Any] = {"requests": arrivals, "arrivals_due": arrivals, "arrivals_min": arrivals}
    figures |= {"schedule_lag_share": share, "backlog_slope": slope, "offered_rate_per_s": 2.0, "requests_per_s": 1.9}
    speed = Performance.model_construct(**figures)
    result: Any = SimpleNamespace(config=OPEN, environment="", energy="", procedure="", performance=speed)
    outcome = arrivals_kept_up_with(AuditInput(result))
    assert outcome is not None
    assert outcome.status == status


@pytest.mark.parametrize(
    ("share", "late_s", "gap_s", "status"),
    [
        (0.8, 0.02, None, "pass"),
        (0.81, 0.001, 0.05, "fail"),
        (0.1, 0.021, 0.05, "fail"),
        (0.1, 0.003, 0.0066, "pass"),
        (0.1, 0.0034, 0.0066, "fail"),
        (None, None, None, None),
    ],
)
def test_a_client_that_is_busy_or_late_is_what_is_measured(
    share: float | None, late_s: float | None, gap_s: float | None, status: str | None
) -> None:
    """Of several passes the worst counts, late by what matters beside a gap; without a server there is no client."""
    passes: Any = [
        SimpleNamespace(client_cpu_share=each, client_late_s=late_s, server_ttft_s=ttft_s, server_itl_s=None)
        for each, ttft_s in ((share and share / 2, 0.1), (share, 0.3))
    ]
    found = serving(passes)
    speed = SimpleNamespace(serving=found, itl=gap_s and SimpleNamespace(p50_s=gap_s))
    result: Any = SimpleNamespace(config=OPEN, environment="", energy="", procedure="", performance=speed)
    outcome = client_keeps_up(AuditInput(result))
    assert (outcome and outcome.status) == status
    if found:
        assert found.server_ttft_s == pytest.approx(0.2)
        assert found.server_itl_s is None


@pytest.mark.parametrize(
    ("busy", "arrival", "status"),
    [
        ([0.31], {}, "warn"),
        ([0.8], {}, "info"),
        ([0.79], {}, "warn"),
        # Stages of a pipeline wait for each other, not for the host.
        ([0.31, 0.9], {}, "info"),
        ([0.31], {"arrival": "poisson", "rate_per_s": 2}, None),
        ([None], {}, None),
    ],
)
def test_a_gpu_that_waits_for_its_host_is_named_and_what_steadies_it(
    busy: list[float | None], arrival: dict[str, Any], status: str | None
) -> None:
    """The figure is right, but it is the host's as much as the GPU's, and a warm-up drifts with the host."""
    config = ExperimentConfig.model_validate({"backend": "vllm", "workload": arrival})
    gpus = {
        f"GPU-{number}": GpuResult(
            used=True, worst_pass_busy_share=share, mean_power_w=178.2, power_limits_w=(700, 700)
        )
        for number, share in enumerate(busy)
    }
    drifting = WarmUp.model_construct(
        restart=0, profile="steady", converged=False, drifting=("tokens/s",), duration_s=240.0
    )
    procedure = SimpleNamespace(warm_up=[drifting])
    result: Any = SimpleNamespace(config=config, environment="", energy="", procedure=procedure, used_gpus=gpus)
    outcome, warm_up = gpus_fed(AuditInput(result)), warm_up_converged(AuditInput(result))
    assert (outcome and outcome.status) == status
    assert outcome is None or outcome.figure.endswith("178 of 700 W")
    assert bool(warm_up.remedy) == (status == "warn")


OPEN = ExperimentConfig.model_validate({"workload": {"arrival": "poisson", "rate_per_s": 2}, "backend": "vllm"})
ODD = {"power_limit_w": 500.0, "name": "NVIDIA Unheard-of"}
LIMIT = ("power limit",)
# Between the two passes, after the limits were read for the record.
LIMIT_FALLS = {"power_limit_changes_at_s": 106.0, "power_limit_then_w": 400.0}
# Fourteen seconds inside the first pass, between two process lists: 20 GB and 60 W more.
STRANGER_POWER = (*POWER[:2], constant(500, 4), constant(560, 14), constant(500, 7), *POWER[3:])
STRANGER = FakeProcess(pid=4243, memory_bytes=20_000_000_000, from_s=84, until_s=98)
SHORT_STRANGER = {"profile": STRANGER_POWER, "processes": (RUNNER, STRANGER)}
HIDDEN_STRANGER = {"processes": (RUNNER, FakeProcess(pid=4243, kind="h", memory_bytes=20_000_000_000, from_s=50))}
UNREAD_PEAK = {"name": "NVIDIA H200 NVL"}


# 600 W instead of 500 in the second of two passes.
SECOND_PASS_DEARER = (*POWER[:4], constant(600, 25), *POWER[5:])
RISING = (*POWER[:2], *(constant(500 + step, 5) for step in range(-20, 30, 10)), *POWER[3:])
# Over both passes these 38 W are 19.
STRAY_IN_THE_SECOND = (constant(80, 106), constant(118, 28), constant(80))
LOSS = ("energy", "meter losses")
# One restart is enough to see what is wrong with a GPU.
CAUGHT = [
    (("throttling",), World(restarts=1, gpu={"thermal_above_w": 400.0})),
    (("counter against power readings",), World(restarts=1, gpu={"power_reading_factor": 1.05})),
    (LOSS, World(restarts=1, gpu={"reset_at_s": 90.0})),
    (LOSS, World(restarts=1, gpu={"lost_at_s": 90.0})),
    (LOSS, World(restarts=1, gpu={"frozen_at_s": 90.0})),
    (("energy source", "throttling"), World(restarts=1, gpu={"unsupported": "energy violation"})),
    (("energy source",), World(restarts=1, gpu={"failing_from_s": 106.0, "failing": "energy"})),
    (("power of unused GPUs",), World(restarts=1, other={"profile": (constant(80, 75), constant(121))})),
    (("power of unused GPUs",), World(restarts=1, other={"profile": STRAY_IN_THE_SECOND})),
    (("GPU use before the runner",), World(restarts=1, gpu={"memory_used_bytes": 2_000_000_000})),
    (("processes on the GPUs",), World(restarts=1, gpu={"processes": (RUNNER, FakeProcess(pid=4243))})),
    (("idle baselines",), World(restarts=1, gpu={"profile": (constant(80, 18), constant(120, 62), constant(500))})),
    (("power limit", "possible speed"), World(restarts=1, gpu=ODD)),
    (LIMIT, World(restarts=1, gpu=LIMIT_FALLS)),
    (LIMIT, World(restarts=1, gpu={"unsupported": "power_limit"})),
    (("clock limits",), World(restarts=1, gpu={"clocks_limited": 1, "sm_clock_mhz": 1200})),
    (("clock limits",), World(restarts=1, gpu={"unsupported": "reasons"})),
    (("memory of others in the passes",), World(restarts=1, gpu=SHORT_STRANGER)),
    (("memory of others in the passes",), World(restarts=1, gpu=HIDDEN_STRANGER)),
    (("GPU use before the runner",), World(restarts=1, gpu={"memory_used_bytes": 550_000_000})),
    (("GPU use around the passes",), World(restarts=1, gpu={"utilization_percent": 80})),
    (("possible speed",), World(restarts=1, gpu=UNREAD_PEAK)),
    (("restarts", "confidence interval"), World(restarts=1)),
    (("pass length",), World(round_s=3.0)),
    (("warm-up",), World(restarts=1, config={"warmup": {"profile": "steady", "slope_per_min": 0.01}})),
    (("warm-up",), World(restarts=1, config={"warmup": {"profile": "steady", "window_s": 30}})),
    (("idle baselines",), World(restarts=1, config={"idle": {"duration_s": 30, "settled": 0.5}})),
    (("J/token drift between passes",), World(restarts=1, gpu={"profile": SECOND_PASS_DEARER})),
    (("work outside passes",), World(restarts=1, early_end_s=0.6)),
    (("warm-up",), World(warm_up_slope=0.01)),
    (("warm-up",), World(config={"warmup": {"profile": "quick"}})),
    (("J/token drift within passes",), World(restarts=1, gpu={"profile": RISING})),
    (("cached prompt tokens",), World(cached_prompt_tokens=500)),
    (("possible speed",), World(output_tokens=2000)),
    (("image",), World(restarts=1, launch=launched(None))),
    (("image",), World(restarts=1, launch=LauncherChoice("docker", "by name", "none", IMAGE))),
    (("environment of the restarts",), World(environments=({}, {}, {"driver_version": "590"}))),
    (("environment of the restarts",), World(environments=({}, {}, None))),
    (("image",), World(restarts=1, launch=LauncherChoice("process", "test", "none"))),
]


@pytest.mark.parametrize(
    ("names", "world"), CAUGHT, ids=lambda value: "+".join(value) if isinstance(value, tuple) else ""
)
def test_a_planted_fault_is_caught_by_the_check_that_is_there_for_it(
    names: tuple[str, ...], world: World, library: Path
) -> None:
    """The figure that it saw stands beside it, and it is one of the verdict's reasons or follows from one."""
    result = result_of(world, library)
    failures = failed(result)
    assert set(names) <= failures.keys()
    assert all(failures[name].figure for name in names)
    assert result.audit is not None
    told = [name for reason in result.audit.reasons for name in (reason.name, *reason.follows)]
    assert sorted(name for name in told if name != "settings") == sorted(failures)


def test_an_image_that_only_its_machine_has_is_warned_of(library: Path) -> None:
    """A registry on the loopback ends with its machine."""
    world = World(restarts=1, launch=launched(f"127.0.0.1:5000/wattdock-vllm@sha256:{'d' * 64}"))
    check = checks(result_of(world, library))["image"]
    assert (check.status, "127.0.0.1:5000" in check.figure, bool(check.remedy)) == ("warn", True, True)


def test_one_throttled_pass_is_not_diluted_by_those_beside_it(library: Path) -> None:
    """40 ms above the limit are 0.16 % of one pass and 0.08 % of both; the mean over both would pass."""
    hot = (constant(390, 10), constant(450, 0.04), constant(390))
    result = result_of(World(restarts=1, gpu={"thermal_above_w": 400.0, "profile": (*POWER[:2], *hot)}), library)
    assert (result.gpus[USED].throttled_share or {})["thermal"] == pytest.approx(0.0008, rel=0.1)
    assert failed(result)["throttling"].figure.startswith("0.1")


def test_a_pass_after_which_no_clock_was_checked_leaves_the_clock_unknown(library: Path) -> None:
    """The runner had died: what its clock had become meanwhile, nobody saw."""
    failures = failed(result_of(World(restarts=2, unchecked=frozenset({1})), library))
    assert (failures["clock"].status, "2 passes" in failures["clock"].figure) == ("unknown", True)


def test_what_was_set_on_purpose_is_no_fault(library: Path) -> None:
    """A declared power limit passes."""
    world = World(restarts=1, gpu={"power_limit_w": 500.0}, config={"power_limit_w": 500})
    assert "power limit" not in failed(result_of(world, library))


def test_what_changed_between_restarts_is_named_and_what_changes_no_pass_is_no_fault(library: Path) -> None:
    """The driver with both versions and their restarts; the coordinator's own Python only as a warning."""
    before, after = {"driver_version": "580", "coordinator_python": "3.11"}, {"driver_version": "590"}
    named = failed(result_of(World(environments=(before, before, before | after)), library))
    assert named["environment of the restarts"].figure == "driver: 580 (restart 1, 2), 590 (restart 3)"
    other_python = before | {"coordinator_python": "3.12"}
    result = result_of(World(environments=(before, before, other_python)), library)
    assert result.audit is not None
    assert result.audit.publishable
    check = checks(result)["environment of the restarts"]
    assert (check.status, "3.12 (restart 3)" in check.figure) == ("warn", True)


def test_the_software_power_cap_is_information_with_its_share_and_clock(library: Path) -> None:
    """At its default limit a GPU is meant to run into it."""
    result = result_of(World(restarts=1, gpu={"throttle_above_w": 400.0}), library)
    check = checks(result)["software power cap"]
    assert (check.status, "1,980 MHz" in check.figure) == ("info", True)
    assert (result.gpus[USED].throttled_share or {})["power"] > 0.9
    assert result.gpus[OTHER].used is False
