"""What a run on CPUs says of others that use them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from wattdock.config import load_study
from wattdock.host import Gpu, GpuInventory
from wattdock.planning import ExecutionPlan, preflight

if TYPE_CHECKING:
    from pathlib import Path

NO_GPU = GpuInventory((), reason="none")
GPUS = GpuInventory((Gpu(index=0, uuid="GPU-1", name="NVIDIA H200", vram_total_bytes=141 * 10**9),))
BUSY = (
    "the CPUs are busy: load average 1.5 per CPU (limit: 1); an engine on CPUs gets many times slower; "
    "end other work (top names it)"
)


@pytest.mark.parametrize(
    ("load", "host_gpus", "accelerator", "told"),
    [
        (12.0, NO_GPU, "auto", (BUSY,)),
        (12.0, GPUS, "cpu", (BUSY,)),
        (8.0, NO_GPU, "auto", ()),
        # An engine on a GPU waits for few threads.
        (12.0, GPUS, "auto", ()),
    ],
)
def test_busy_cpus_are_told_where_an_engine_computes_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float, host_gpus: Any, accelerator: str, told: Any
) -> None:
    """Above one thread for each of eight CPUs, once for all experiments of a study."""
    monkeypatch.setattr(GpuInventory, "here", lambda: host_gpus)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    settings = {"backend": "pytorch", "model": "shape:tiny-llama", "launcher": "process", "accelerator": accelerator}
    study = load_study({"defaults": settings, "sweep": {"pytorch.dtype": ["float32", "bfloat16"]}}, {})
    plans = preflight(study.experiments, output_dir=tmp_path, home=tmp_path)
    assert [plan.warnings for plan in plans if isinstance(plan, ExecutionPlan)] == [told, told]
