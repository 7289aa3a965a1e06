"""What a plan says of a model's memory: of the GPUs that it may get, or of what the host has left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from make.outcomes import known

from wattdock.config import load_study
from wattdock.errors import Cause, ConfigError, PreflightError
from wattdock.host import Gpu, GpuInventory
from wattdock.planning import ExecutionPlan, preflight

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.errors import WattdockError

# Weights of 16 GB in bfloat16, 32 in float32, which a CPU takes.
SETTINGS = {"model": "shape:llama-3.1-8b", "backend": "pytorch", "launcher": "process"}
LARGE = Gpu(index=0, uuid="GPU-1", name="NVIDIA H200", vram_total_bytes=141 * 10**9)
GPUS = GpuInventory((LARGE,))


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what comes of an experiment on a machine with these GPUs, or with so much memory left."""

    def plan(gpus: GpuInventory, left_bytes: float = 1e12, **settings: Any) -> ExecutionPlan | WattdockError:
        monkeypatch.setattr(GpuInventory, "here", lambda: gpus)
        monkeypatch.setattr("wattdock.launch.launcher_choice.LauncherChoice.memory_left_bytes", left_bytes)
        [config] = load_study(SETTINGS | settings, {}).experiments
        [outcome] = preflight([config], output_dir=tmp_path, home=tmp_path)
        return outcome

    return plan


def test_on_gpus_the_plan_says_how_the_model_fits_them(planned: Any) -> None:
    """However little memory the host has."""
    line = known(planned(GPUS, left_bytes=1e9).memory)
    assert "memory of shape:llama-3.1-8b" in line
    assert "one GPU: fits: " in line


@pytest.mark.parametrize(("left_bytes", "said"), [(200e9, None), (33.5e9, "this machine: uncertain: ")])
def test_on_cpus_only_a_model_that_may_not_fit_is_worth_a_line(
    planned: Any, left_bytes: float, said: str | None
) -> None:
    """Of the memory that the host has left, also where it has GPUs that are not asked for."""
    for gpus, settings in ((GpuInventory((), reason="none"), {}), (GPUS, {"accelerator": "cpu"})):
        plan = planned(gpus, left_bytes, **settings)
        assert (plan.memory is None) if said is None else (said in known(plan.memory))


def test_a_model_that_cannot_fit_is_refused_where_it_would_run(planned: Any) -> None:
    """With what it takes and what there is."""
    small = GpuInventory((Gpu(index=0, uuid="GPU-1", name="small", vram_total_bytes=8 * 10**9),))
    for outcome, gigabytes in ((planned(small), "8.0 GB"), (planned(GpuInventory((), reason="none"), 9e9), "9.0 GB")):
        assert isinstance(outcome, PreflightError)
        assert "cannot fit on" in outcome.what
        assert gigabytes in outcome.what
    tiny = Gpu(index=0, uuid="GPU-1", name="tiny", vram_total_bytes=5 * 10**8)
    many = {"batch_size": 4096, "max_output_tokens": 2048, "prompts": {"source": "synthetic", "input_tokens": 2048}}
    for outcome, remedy in (
        # No workload makes weights smaller.
        (planned(GpuInventory((), reason="none"), 9e9), "weights in fewer bits (dtype), a smaller model or a machine"),
        (planned(GpuInventory((tiny,))), "take weights in fewer bits (dtype), a smaller model or larger GPUs"),
        (planned(GpuInventory((), reason="none"), 99e9, workload=many), "lower batch_size, or take a smaller model or"),
    ):
        assert isinstance(outcome, PreflightError)
        assert remedy in (outcome.remedy or "")


@pytest.mark.parametrize(
    ("backend", "tokens", "context"), [("pytorch", 8192, "8,192"), ("vllm", 8192, "8,192"), ("llamacpp", 4096, "4,096")]
)
def test_answers_to_questions_that_exceed_the_context_are_refused_before_anything_is_measured(
    planned: Any, backend: str, tokens: int, context: str
) -> None:
    """Else they have no score once the passes are measured; the length of the passes' own prompts is no part of it."""
    settings: dict[str, Any] = {"model": "smollm2-135m-instruct", "backend": backend}
    long_prompts = {"prompts": {"source": "synthetic", "input_tokens": tokens - 64}}
    for over in (0, 1):
        asked = {"tasks": ["arithmetic"], "max_output_tokens": tokens + over}
        plan = planned(GpuInventory((), reason="none"), quality=asked, workload=long_prompts, **settings)
        assert isinstance(plan, ConfigError) is bool(over)
        if isinstance(plan, ConfigError):
            assert plan.what.startswith(
                f"quality: smollm2-135m-instruct has a context of {context} tokens in {backend}"
            )
            assert (plan.remedy, plan.cause) == ("lower quality.max_output_tokens", Cause.DOES_NOT_FIT)
