"""The audit finds what is wrong with an experiment, and nothing wrong with a sound one."""

from __future__ import annotations

from dataclasses import replace
from math import hypot, sqrt
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from fake_nvml import FakeProcess, constant
from make.audit_world import (
    AS_EVER,
    DIGEST,
    IMAGE,
    OTHER,
    POWER,
    PROMPT_TOKENS,
    RUNNER,
    USED,
    World,
    checks,
    launched,
    result_of,
)
from make.outcomes import known
from seams.analysis import NORMAL95, GpuResult, PassMix, Performance, Procedure, serving
from seams.audit import (
    AuditInput,
    arrivals_kept_up_with,
    client_keeps_up,
    gpus_fed,
    uncertainty_small,
    work_as_declared,
)
from seams.launch import Engine, Image, PackageLock
from seams.records import DeclaredWork

from wattdock.analysis import Budget
from wattdock.config import ExperimentConfig
from wattdock.launch import LauncherChoice
from wattdock.records import Failure

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.analysis import Check, ExperimentResult


FILE = Image(Engine("/bin/apptainer", "1.4.0", name="apptainer"), "x.sif", f"sha256:{'1' * 64}", None)


@pytest.fixture(scope="module")
def sound(library: Path) -> ExperimentResult:
    return result_of(World(recordings=(AS_EVER,) * 3), library)


def failed(result: ExperimentResult) -> dict[str, Check]:
    """Return the checks that keep a result from being published."""
    return {name: check for name, check in checks(result).items() if check.status in ("fail", "unknown")}


def test_a_sound_experiment_has_nothing_wrong_and_may_be_published(sound: ExperimentResult) -> None:
    """Without this, a check that always fails would pass every test below."""
    assert failed(sound) == {}
    audit, budget = known(sound.audit), known(sound.budget)
    assert (audit.publishable, audit.reasons) == (True, [])
    figure = f"{budget.energy_per_unit_j:.4g} J/output token ± {100 * known(budget.expanded):.2f} %"
    assert audit.summary == f"publishable: {figure}"
    # 500 W for 5 s are 800 tokens.
    assert budget.energy_per_unit_j == pytest.approx(3.125, rel=0.001)
    # Nearly all of it: 0.06 ± 0.03 %/°C in a room of ± 1.5 °C, 0.05 % for the first seconds, and hardly fewer than
    # infinitely many degrees of freedom.
    assert known(budget.expanded) == pytest.approx(NORMAL95 * hypot(0.0009, 0.00045, 0.0005), rel=0.05)


def test_merged_energy_is_within_two_thousandths_of_the_truth(sound: ExperimentResult) -> None:
    """500 W for 90 s, three times; of it 382 W above idle with the model loaded."""
    energy = known(sound.energy)
    for measured in energy.passes:
        assert measured.total_j == pytest.approx(45_000, rel=0.002)
    assert known(energy.windows).headline == "steady_state"
    for window in known(energy.windows).of_headline():
        assert (window.duration_s, window.output_tokens) == (45, 9 * 8 * 100)
        assert window.total_j == pytest.approx(22_500, rel=0.002)
    # Idle power is as before in this world: what is left is when the runs and the idle spans began and ended.
    assert known(energy.timing_j) < known(energy.net_uncertainty_j) < 50
    net_j = 3 * 90 * (500 - 118)
    assert energy.net_j == pytest.approx(net_j, rel=0.003)
    assert energy.net_j == pytest.approx(net_j, abs=NORMAL95 * known(energy.net_uncertainty_j))
    # 0.6 of every 5 s are prefill at the same 500 W; nothing lies between rounds.
    assert known(energy.phases).prefill_j == pytest.approx(3 * 18 * 0.6 * 500, rel=0.01)
    assert known(energy.phases).decode_j == pytest.approx(3 * 18 * 4.4 * 500, rel=0.01)


def test_the_memorys_part_is_known_and_stands_beside_the_speed(sound: ExperimentResult) -> None:
    """0.15 of 500 W, which is a part of the board's joules and not added to them."""
    energy = known(sound.energy)
    assert energy.hbm_reason is None
    assert energy.hbm_j == pytest.approx(3 * 90 * 75, abs=known(energy.hbm95_j))
    assert energy.mean_hbm_power_w == pytest.approx(75, rel=0.01)
    assert energy.total_j == pytest.approx(3 * 90 * 500, rel=0.002)
    assert known(known(sound.compute).hbm_j_per_byte_most) > 0
    assert "75 W" in checks(sound)["possible speed"].figure


@pytest.mark.parametrize(
    ("arrivals", "share", "slope", "status"),
    [
        (600, 0.011, 0.005, "pass"),
        (600, 0.011, 0.041, "fail"),
        (8, 0.011, 0.041, "unknown"),
        (8, 0.011, 0.005, "warn"),
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


@pytest.mark.parametrize("declared", [9.0, None])
@pytest.mark.parametrize(("correction", "status"), [(-0.09, "pass"), (0.09, "pass"), (-0.11, "fail"), (0.11, "fail")])
def test_a_quiet_trace_s_beginning_is_corrected_by_a_few_percent_only(
    correction: float, status: str, declared: float | None
) -> None:
    """Arrivals change J/token along a curve; prompts, answers and order were all as declared, if lengths are."""
    mix = PassMix(restart=0, **{"pass": 0}, answer_tokens=9, declared_answer_tokens=declared, mismatches={})
    entry = {"name": "mix of work", "correction": correction, "standard_uncertainty": 0.01, "found": ""}
    budget = Budget.model_validate({"measured": 1.0, "energy_per_unit_j": 1.0, "entries": [entry]})
    figures = {"config": OPEN, "environment": "", "energy": "", "procedure": Procedure(mix=[mix]), "budget": budget}
    result: Any = SimpleNamespace(**figures)
    outcome = known(work_as_declared(AuditInput(result)))
    assert outcome.status == status
    assert (
        outcome.figure.split(";")[0] == f"J/token is corrected by {correction:+.2%}, too far for a straight line"
    ) == (status == "fail")
    result.config = ExperimentConfig.model_validate({"workload": {"arrival": "closed"}, "backend": "vllm"})
    assert known(work_as_declared(AuditInput(result))).status == "pass"


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
        SimpleNamespace(client_cpu_share=each, client_late_s=late_s, others_counted=True)
        for each in (share and share / 2, share)
    ]
    found = serving(passes)
    speed = SimpleNamespace(serving=found, itl=gap_s and SimpleNamespace(p50_s=gap_s))
    result: Any = SimpleNamespace(config=OPEN, environment="", energy="", procedure="", performance=speed)
    outcome = client_keeps_up(AuditInput(result))
    assert (outcome and outcome.status) == status


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
def test_a_gpu_that_waits_for_its_host_is_named(
    busy: list[float | None], arrival: dict[str, Any], status: str | None
) -> None:
    """The figure is right, but it is the host's as much as the GPU's."""
    config = ExperimentConfig.model_validate({"backend": "vllm", "workload": arrival})
    gpus = {
        f"GPU-{number}": GpuResult(
            used=True, worst_pass_busy_share=share, mean_power_w=178.2, power_limits_w=(700, 700)
        )
        for number, share in enumerate(busy)
    }
    result: Any = SimpleNamespace(config=config, environment="", energy="", procedure="", used_gpus=gpus)
    outcome = gpus_fed(AuditInput(result))
    assert (outcome and outcome.status) == status
    assert outcome is None or outcome.figure.endswith("178 of 700 W")


@pytest.mark.parametrize(
    ("entry", "busy", "words"),
    [
        (Budget.RESTARTS, 0.18, "the GPUs are idle in 82% of the worst pass: give each step more work"),
        (Budget.RESTARTS, 0.9, "more restarts, or longer windows"),
        (Budget.ROOM, 0.18, "more restarts, or longer windows"),
    ],
)
def test_restarts_that_differ_with_a_starved_gpu_need_more_work_in_a_step(entry: str, busy: float, words: str) -> None:
    """On such an H200 they differed by 17 %: 290 of them would have made 2 %."""
    budget = SimpleNamespace(expanded=0.44, entries=[SimpleNamespace(name=entry, share=1.0, found="")])
    gpus = {"GPU-0": GpuResult(used=True, worst_pass_busy_share=busy)}
    config = ExperimentConfig.model_validate({"backend": "vllm"})
    machine: Any = SimpleNamespace(gpu_count=1)
    result: Any = SimpleNamespace(
        config=config, environment=machine, energy="", procedure="", used_gpus=gpus, budget=budget
    )
    outcome = known(uncertainty_small(AuditInput(result)))
    assert (outcome.status, known(outcome.remedy).startswith(words)) == ("fail", True)


OPEN = ExperimentConfig.model_validate({"workload": {"arrival": "poisson", "rate_per_s": 2}, "backend": "vllm"})
ODD = {"power_limit_w": 500.0, "name": "NVIDIA Unheard-of"}
# After the limits were read for the record.
LIMIT_FALLS = {"power_limit_changes_at_s": 106.0, "power_limit_then_w": 400.0}
# Thirteen seconds of the lead-in, between two process lists: 20 GB and 60 W more.
STRANGER_POWER = (*POWER[:2], constant(500, 31), constant(560, 13), constant(500, 46), POWER[3])
STRANGER = FakeProcess(pid=4243, memory_bytes=20_000_000_000, from_s=61, until_s=74)
SHORT_STRANGER = {"profile": STRANGER_POWER, "processes": (RUNNER, STRANGER)}
HIDDEN_STRANGER = {"processes": (RUNNER, FakeProcess(pid=4243, kind="h", memory_bytes=20_000_000_000, from_s=20))}
# 6 % more in one restart of three: a standard deviation of 3.4 %, whose root of three is 2 %, times 4.3.
DEARER = {"profile": (*POWER[:2], constant(530, 90), POWER[3])}
# 4 % more in each window's end than in its beginning, which 45 s do not tell from a slow wave.
RISING = {"profile": (*POWER[:2], constant(480, 45), *(constant(480 + step, 5) for step in range(0, 45, 5)), POWER[3])}
# Two blocks a window, which no line says anything of.
TWO_ROUNDS = {
    "warmup": {"profile": "lead-in", "lead_in_s": 77, "window_lifetimes": 0},
    "workload": {
        "batch_size": 8,
        "max_output_tokens": 100,
        "min_duration_s": 8,
        "prompts": {"source": "synthetic", "input_tokens": PROMPT_TOKENS},
    },
}
NO_LEAD_IN = {"profile": "lead-in", "lead_in_s": 0, "lead_in_lifetimes": 0}
DEAD = Failure(kind="RunnerError", message="the runner died", stage="pass 1/1", exit_code=5)
LONGER_PROMPTS = DeclaredWork(502, 100, 502 * 99 + 100 * 99 / 2)
# Without joules there is no figure, and without the GPU hardly any reading.
NO_JOULES = {"meter": "fail", "two readings": "unknown", "uncertainty": "unknown"}
UNREAD = ("throttling", "GPU settings", "processes on the GPUs", "memory of others")
# The checks on other questions than whether anything is wrong.
KNOWN = ("uncertainty", "measured window")
REPEAT = ("weights", "software", "environment of the restarts", "runners of a restart")
CAUGHT: list[tuple[dict[str, str], World]] = [
    ({"throttling": "fail"}, World(gpu={"thermal_above_w": 400.0})),
    ({"two readings": "fail"}, World(gpu={"power_reading_factor": 1.05})),
    (NO_JOULES, World(gpu={"reset_at_s": 90.0})),
    (NO_JOULES | dict.fromkeys(UNREAD, "unknown"), World(gpu={"lost_at_s": 90.0})),
    (NO_JOULES, World(gpu={"frozen_at_s": 90.0})),
    (NO_JOULES, World(gpu={"failing_from_s": 106.0, "failing": "energy"})),
    (NO_JOULES, World(gpu={"unsupported": "energy"})),
    ({"throttling": "unknown"}, World(gpu={"unsupported": "violation"})),
    ({"other GPUs": "fail"}, World(other={"profile": (constant(80, 28), constant(121))})),
    ({"memory of others": "fail"}, World(gpu={"memory_used_bytes": 2_000_000_000})),
    ({"memory of others": "fail"}, World(gpu={"memory_used_bytes": 550_000_000})),
    ({"memory of others": "fail"}, World(gpu={"utilization_percent": 80})),
    ({"memory of others": "unknown"}, World(gpu=SHORT_STRANGER)),
    ({"memory of others": "unknown"}, World(gpu=HIDDEN_STRANGER)),
    ({"processes on the GPUs": "fail"}, World(gpu={"processes": (RUNNER, FakeProcess(pid=4243))})),
    ({"GPU settings": "fail", "possible speed": "unknown"}, World(gpu=ODD)),
    ({"GPU settings": "fail"}, World(gpu=LIMIT_FALLS)),
    ({"GPU settings": "unknown"}, World(gpu={"unsupported": "power_limit"})),
    ({"GPU settings": "fail"}, World(gpu={"clocks_limited": 1, "sm_clock_mhz": 1200})),
    ({"GPU settings": "unknown"}, World(gpu={"unsupported": "reasons"})),
    ({"possible speed": "unknown"}, World(gpu={"name": "NVIDIA H200 NVL"})),
    ({"possible speed": "fail"}, World(output_tokens=2000)),
    ({"token counts": "fail"}, World(early_end_s=0.6)),
    ({"cached prompts": "fail"}, World(cached_prompt_tokens=500)),
    ({"work sent against work declared": "fail"}, World(run={"declared": LONGER_PROMPTS})),
    ({"clock": "unknown"}, World(run={"clock_checked": False})),
    ({"CPU use by others": "fail"}, World(run={"cpu_others_share": 0.35})),
    ({"other measurements": "fail"}, World(run={"lease_fault": "the lease x was removed"})),
    ({"completion": "fail"}, World(failure=DEAD)),
    ({"uncertainty": "unknown"}, World(restarts=1)),
    ({"uncertainty": "fail"}, World(recordings=(AS_EVER, AS_EVER, (DEARER, {})))),
    ({"uncertainty": "fail", "measured window": "fail"}, World(gpu=RISING)),
    ({"measured window": "fail"}, World(config={"warmup": {"profile": "lead-in", "window_lifetimes": 10}})),
    ({"measured window": "unknown"}, World(config=TWO_ROUNDS)),
    ({"measured window": "fail"}, World(config={"warmup": {"profile": "quick"}})),
    ({"measured window": "fail"}, World(config={"warmup": NO_LEAD_IN})),
    ({"weights": "fail"}, World(model={"revision": None})),
    ({"weights": "fail"}, World(model={"revision": f"sampled-sha256:{'0' * 64}"})),
    ({"weights": "fail"}, World(model={"random_weights": True})),
    ({"software": "fail"}, World(launch=launched(None))),
    ({"software": "fail"}, World(launch=LauncherChoice("docker", "by name", "none", IMAGE))),
    ({"software": "fail"}, World(launch=LauncherChoice("apptainer", "by file", "none", FILE))),
    ({"software": "fail"}, World(launch=LauncherChoice("process", "test", "none"))),
    ({"software": "fail"}, World(environments=({"wattdock_dirty": True},) * 3)),
    ({"software": "fail"}, World(environments=({"wattdock_commit": None},) * 3)),
    ({"environment of the restarts": "fail"}, World(environments=({}, {}, {"driver_version": "590"}))),
    ({"environment of the restarts": "unknown"}, World(environments=({}, {}, None))),
    ({"runners of a restart": "fail"}, World(resumed=True)),
]


@pytest.mark.parametrize(("faults", "world"), CAUGHT, ids=["+".join(names) for names, _ in CAUGHT])
def test_a_planted_fault_is_caught_by_the_check_that_is_there_for_it_and_by_no_other(
    faults: dict[str, str], world: World, library: Path
) -> None:
    """The figure that it saw stands beside it, and the verdict names it under the right question."""
    result = result_of(world, library)
    audit, failures = known(result.audit), failed(result)
    assert not audit.publishable
    assert {reason.name: failures[reason.name].status for reason in audit.reasons} == faults
    assert all(reason.found for reason in audit.reasons)
    for reason in audit.reasons:
        assert reason.question == ("known" if reason.name in KNOWN else "repeat" if reason.name in REPEAT else "wrong")


def test_every_check_that_may_refuse_a_figure_refuses_one_here(sound: ExperimentResult) -> None:
    """What no fault is planted for could pass everything."""
    may_refuse = {name for name, check in checks(sound).items() if check.question}
    assert may_refuse == {name for names, _ in CAUGHT for name in names}


@pytest.mark.parametrize(
    ("revision", "base", "status", "verdict"),
    [
        ("c0ffee", True, "warn", " %; with a warning: software (only that machine has it)"),
        ("c0ffee", False, "fail", " %; cannot be repeated: software"),
        ("c0ffee-dirty", True, "fail", " %; cannot be repeated: software"),
        (None, True, "fail", " %; cannot be repeated: software"),
    ],
)
def test_an_image_that_only_its_machine_has_must_be_of_a_commit_and_a_registrys_base(
    library: Path, revision: str | None, base: bool, status: str, verdict: str
) -> None:
    """A registry on the loopback ends with its machine; what is left to others is to build the image, on its base."""
    choice = launched(f"127.0.0.1:5000/wattdock-vllm@sha256:{'d' * 64}")
    assert choice.image
    labels = {"org.opencontainers.image.revision": revision} if revision else {}
    labels |= {"org.opencontainers.image.base.digest": f"sha256:{'b' * 64}"} if base else {}
    result = result_of(World(launch=replace(choice, image=replace(choice.image, labels=labels))), library)
    check = checks(result)["software"]
    assert (check.status, "127.0.0.1:5000" in check.figure, bool(check.remedy)) == (status, True, True)
    assert result.audit
    assert result.audit.summary.endswith(verdict)


@pytest.mark.parametrize(
    ("machine", "own", "status", "words"),
    [
        ({"wattdock_commit": "c0ffee"}, True, "pass", ("lock of 2 packages, eeee", "wattdock c0ffee", "does not hold")),
        ({"wattdock_commit": "c0ffee"}, False, "fail", ("not wattdock's own: wattdock_mine.py",)),
        ({"wattdock_commit": "c0ffee", "wattdock_dirty": True}, True, "fail", ("has changes",)),
        ({"wattdock_commit": None}, True, "fail", ("of no commit",)),
    ],
)
def test_locked_packages_of_a_commit_can_be_repeated_without_a_container(
    machine: dict[str, Any], own: bool, status: str, words: tuple[str, ...], library: Path, tmp_path: Path
) -> None:
    """The runner's own code is the commit's."""
    if not own:
        (tmp_path / "wattdock_mine.py").touch()
    versions = {"torch": frozenset({"2.13.0"}), "vllm": frozenset({"0.32.0"})}
    launch = LauncherChoice("process", "test", "none", packages=PackageLock(tmp_path / "a.lock", "e" * 64, versions))
    result = result_of(World(launch=launch, environments=(machine,) * 3), library)
    check = checks(result)["software"]
    assert (check.status, known(result.audit).publishable) == (status, status == "pass")
    assert [word for word in words if word not in check.figure] == []


LOCAL = {"kind": "path", "name": "folder", "revision": "sha256:e"}
SPECULATIVE = {"method": "draft_model", "model": "/models/draft", "num_speculative_tokens": 3}
DRAFT = {"backend": "vllm", "vllm": {"speculative_config": SPECULATIVE}}
SERVER = {"backend": "url", "url": {"base_url": "http://x:1", "environment": DIGEST}}
TELLING = {"client_cpu_share": 0.1, "client_late_s": 0.001, "others_counted": True}


@pytest.mark.parametrize(
    ("world", "words"),
    [
        (World(model=LOCAL), ("sha256:e", "nothing shows that they are trained")),
        (World(model={"revision": "hub-cache:e+files-sha256:f"}), ("files-sha256:f", "no hash of the hub's vouches")),
        (World(config=DRAFT), ("0123abcd", "nothing shows that they are trained")),
        (World(config=SERVER, run=TELLING), ("0123abcd", "as declared; not checked")),
    ],
)
def test_weights_that_nobody_can_check_are_told_in_the_verdicts_line(
    world: World, words: tuple[str, ...], library: Path
) -> None:
    """A folder's digest identifies its weights, also those of a draft; a server has loaded what it has loaded."""
    result = result_of(world, library)
    check = checks(result)["weights"]
    assert (check.status, [word for word in words if word not in check.figure]) == ("warn", [])
    assert " %; with a warning: weights" in known(result.audit).summary


def test_a_lead_in_precedes_the_window_by_the_time_in_which_an_engine_starts(library: Path) -> None:
    """The uncertainty of the first seconds alone would let a window without any pass: it is ± 1.97 % then."""
    short, long = (
        result_of(World(config={"warmup": NO_LEAD_IN | {"lead_in_s": seconds}}), library) for seconds in (10, 15)
    )
    assert "after less than 15 s of work" in failed(short)["measured window"].figure
    assert failed(long) == {}


def test_one_throttled_restart_is_not_diluted_by_those_beside_it(library: Path) -> None:
    """135 ms above the limit are 0.15 % of one run and 0.05 % of all; the mean over all would pass."""
    hot = {"profile": (*POWER[:2], constant(390, 40), constant(450, 0.135), constant(390, 49.865), POWER[3])}
    cool = {"profile": (*POWER[:2], constant(390, 90), POWER[3])}
    world = World(gpu={"thermal_above_w": 400.0}, recordings=((hot, {}), (cool, {}), (cool, {})))
    result = result_of(world, library)
    assert (result.gpus[USED].throttled_share or {})["thermal"] == pytest.approx(0.0005, rel=0.1)
    assert (result.gpus[USED].worst_pass_throttled_share or {})["thermal"] == pytest.approx(0.0015, rel=0.05)
    assert "of the worst pass (thermal" in failed(result)["throttling"].figure


def test_what_was_set_on_purpose_is_no_fault(library: Path) -> None:
    """A declared power limit passes."""
    world = World(gpu={"power_limit_w": 500.0}, config={"power_limit_w": 500})
    assert failed(result_of(world, library)) == {}


def test_what_changed_between_restarts_is_named_and_what_changes_no_pass_is_no_fault(library: Path) -> None:
    """The driver with both versions and their restarts; the coordinator's own Python only as a warning."""
    before, after = {"driver_version": "580", "coordinator_python": "3.11"}, {"driver_version": "590"}
    named = failed(result_of(World(environments=(before, before, before | after)), library))
    assert named["environment of the restarts"].figure == "driver: 580 (restart 1, 2), 590 (restart 3)"
    long = {"driver_version": f"{'x' * 999}590{'y' * 999}"}
    named = failed(result_of(World(environments=(before, before, before | long)), library))
    assert named["environment of the restarts"].figure == f"driver: 580 (restart 1, 2), {'x' * 100}… (restart 3)"
    other_python = before | {"coordinator_python": "3.12"}
    result = result_of(World(environments=(before, before, other_python)), library)
    assert result.audit is not None
    assert result.audit.publishable
    check = checks(result)["environment of the restarts"]
    assert (check.status, "3.12 (restart 3)" in check.figure) == ("warn", True)


def test_the_software_power_cap_is_no_fault(library: Path) -> None:
    """At its default limit a GPU is meant to run into it."""
    result = result_of(World(gpu={"throttle_above_w": 400.0}), library)
    assert failed(result) == {}
    assert (result.gpus[USED].throttled_share or {})["power"] > 0.9
    assert result.gpus[OTHER].used is False


def test_prompts_that_all_are_two_percent_longer_are_wrong_and_half_a_percent_is_corrected(library: Path) -> None:
    """Lengths that are fixed, in whole rounds, have no chance; half of J/token follows prompts, a quarter contexts."""
    much, little = (PROMPT_TOKENS / share for share in (1.02, 1.005))
    wrong, right = (
        result_of(World(run={"declared": DeclaredWork(tokens, 100, tokens * 99 + 100 * 99 / 2)}), library)
        for tokens in (much, little)
    )
    # Contexts, 512 × 99 + 4950 positions, are 1.8 % off: 2 % of half of J/token, and 1.8 % of a quarter.
    figure = failed(wrong)["work sent against work declared"].figure
    assert figure.startswith("prompt tokens per output token are +2.00% off the long run (by chance ± 0.00%); answer ")
    assert figure.endswith("; J/token is corrected by -1.45%")
    assert failed(right) == {}
    entry = known(known(right.budget).entry("mix of work"))
    assert entry.correction == pytest.approx(-0.005 * (0.5 + 0.25 * 512 * 99 / (512 * 99 + 4950)), rel=0.01)
    assert known(right.budget).energy_per_unit_j == pytest.approx(3.125 * (1 + entry.correction), rel=0.001)


@pytest.mark.parametrize("seed", range(4))
def test_few_prompts_like_peoples_are_several_percent_off_and_corrected_not_wrong(seed: int, library: Path) -> None:
    """Prompts take 0.6 s of each 5 s, and some 75 of them a window are 12 % off by chance."""
    busy, lead_in = {"profile": (*POWER[:2], constant(500))}, {"profile": "lead-in", "lead_in_s": 40}
    result = result_of(World(draw=seed, recordings=(AS_EVER,) * 3, gpu=busy, config={"warmup": lead_in}), library)
    assert failed(result) == {}
    procedure, budget = known(result.procedure), known(result.budget)
    assert procedure.draw_chance == pytest.approx(1 / sqrt(3 * 75), rel=0.3)
    off, entry = known(procedure.draw_difference), known(budget.entry("mix of work"))
    assert off * entry.correction < 0
    assert budget.measured == pytest.approx(3.125 * (1 + 0.12 * off), rel=0.001)
    assert abs(budget.energy_per_unit_j / 3.125 - 1) < known(budget.expanded)
