"""What differs between two environments that could make a figure differ. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock.results.environment import EnvironmentSnapshot

# One word each in the snapshot, the most telling first.
FACTS = (
    "gpu_names",
    "gpu_uuids",
    "driver_version",
    "cuda_version",
    "nccl_version",
    "cpu_model",
    "cpu_count",
    "kernel",
    "launcher",
    "image_digest",
    "framework_version",
    "runner_python",
    "wattdock_version",
    "wattdock_commit",
    "wattdock_dirty",
    "meter",
    "exclusive",
    "dataset_sha256",
    "seed",
)
MODEL_FACTS = ("name", "revision", "weights", "weight_bytes")
GPU_FACTS = ("power_limit_w", "sm_clock_max_mhz", "memory_clock_max_mhz", "ecc", "mig", "vram_total_bytes")
ABSENT = "none"


@dataclass(frozen=True)
class Differing:
    """One fact that differs, in words."""

    name: str
    before: str
    now: str


def environment_differences(before: EnvironmentSnapshot, now: EnvironmentSnapshot) -> list[Differing]:
    """Return what of hardware, driver, software, model and prompts is not the same."""
    old, new = facts(before), facts(now)
    names = [*old, *(name for name in new if name not in old)]
    pairs = ((name, old.get(name, ABSENT), new.get(name, ABSENT)) for name in names)
    return [Differing(name, was, is_) for name, was, is_ in pairs if was != is_]


def facts(seen: EnvironmentSnapshot) -> dict[str, str]:
    """Return the facts that are compared, by name."""
    found: dict[str, Any] = {name: getattr(seen, name) for name in FACTS}
    found |= {f"model.{name}": getattr(seen.model, name) for name in MODEL_FACTS}
    used = [gpu for gpu in seen.host_gpus if gpu.used]
    found |= {f"gpu.{name}": [getattr(gpu, name) for gpu in used] for name in GPU_FACTS if used}
    if seen.container and not seen.image_digest:
        found["image_id"] = seen.container.image_id
    found |= _flat("package", seen.package_versions)
    found |= _flat("engine", seen.engine_args)
    return {name: _word(value) for name, value in found.items()}


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{name}": values[name] for name in sorted(values)}


def _word(value: Any) -> str:
    if isinstance(value, list):
        words = [_word(one) for one in value]
        return ", ".join(words) if len(set(words)) > 1 else f"{len(words)} × {words[0]}" if words else ABSENT
    return ABSENT if value is None else str(value)
