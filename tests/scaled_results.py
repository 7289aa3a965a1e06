"""Stored results of known speed and energy, made from a real one, for tests of scaling."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock.analysis.result import ExperimentResult

if TYPE_CHECKING:
    from collections.abc import Sequence

SAMPLE = Path(__file__).parent / "data/result.json"
PASS_S = 20.0


def document(
    split: dict[str, int],
    tokens_per_s: Sequence[float],
    power_w: Sequence[float] | None,
    *,
    batch_size: int = 128,
    started: str = "2026-11-21T10:00:00.000+00:00",
) -> dict[str, Any]:
    """Return a result of vLLM whose restarts, one pass each, had these speeds and these watts over all GPUs.

    Args:
        split: As a runner says it, `tensor_parallel_size` and the like; `device_map` for its number of GPUs.
        power_w: None: energy was not measured.
    """
    made: dict[str, Any] = copy.deepcopy(json.loads(SAMPLE.read_text()))
    gpus = split.get("device_map") or 1
    for size in split.values():
        gpus = size * (1 if "device_map" in split else gpus)
    uuids = [f"GPU-00000000-0000-0000-0000-{number:012}" for number in range(1, gpus + 1)]
    kind = (
        {"kind": "device_map", "devices": dict.fromkeys(uuids, 1)} if "device_map" in split else {"kind": "x", **split}
    )
    made["config"] |= {"backend": "vllm", "vllm": {"dtype": "bfloat16", **split}, "name": str(split)}
    made["config"]["workload"] |= {"batch_size": batch_size}
    made["environment"]["backend"] = "vllm"
    made["environment"]["runner"] |= {"framework_version": "0.26.0", "parallelism": kind}
    made["environment"] |= {"gpu_count": gpus, "gpu_names": ["NVIDIA H200"] * gpus, "gpu_uuids": uuids}
    watts: Sequence[float | None] = power_w or [None] * len(tokens_per_s)
    made["energy"]["passes"] = [
        _pass(restart, speed, power) for restart, (speed, power) in enumerate(zip(tokens_per_s, watts, strict=True))
    ]
    return made | {"started_utc": started}


def _pass(restart: int, tokens_per_s: float, power_w: float | None) -> dict[str, Any]:
    joules = None if power_w is None else power_w * PASS_S
    tokens = round(tokens_per_s * PASS_S)
    return {
        "restart": restart,
        "pass": 0,
        "duration_s": PASS_S,
        "output_tokens": tokens,
        "total_j": joules,
        "timing_j": 0.0,
        "per_gpu_j": {},
        "energy_per_output_token_j": None if joules is None else joules / tokens,
        "reason": None if joules is not None else "no counter",
        "prompt_repeats": 0,
        "prompts_reused": False,
    }


def result(*args: Any, **options: Any) -> ExperimentResult:
    """Return the same as a result that was read."""
    return ExperimentResult.model_validate(document(*args, **options))
