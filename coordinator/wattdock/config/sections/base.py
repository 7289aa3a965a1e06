"""What every backend's section can answer; a backend without a file of its own uses this one as it is."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from pydantic import BaseModel, ConfigDict

from wattdock.config.placement import EngineMemory, Split


class BackendSection(BaseModel):
    """Engine arguments of one backend.

    Names that the section does not declare are passed through: the runner holds them against its engine and refuses
    an unknown one with the nearest valid name.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    dtype: str = "auto"

    def gpus_needed(self) -> int:
        """Return how many GPUs this section's parallelism takes, where a GPU is used at all."""
        return 1

    def split(self, gpus: int) -> Split:  # noqa: ARG002
        """Return how these settings spread a model over a number of GPUs."""
        return Split()

    def memory(self) -> EngineMemory | None:
        """Return how these settings have the engine use a GPU's memory; None where the section does not tell."""
        return None

    @property
    def moves_memory(self) -> bool:
        """Whether settings keep weights or caches elsewhere, or quantise while loading; they are passed through."""
        given = self.model_extra or {}
        return bool(getattr(self, "quantization", None)) or any("offload" in name for name in given)

    def engine_args(self) -> dict[str, Any]:
        """Return what the runner's engine is given, apart from `dtype`."""
        return self.model_dump(exclude={"dtype"}, exclude_unset=True)


def section_class(backend: str) -> type[BackendSection]:
    """Return the section that `backend` declares, or the one that passes everything through."""
    name = f"wattdock.config.sections.{backend}"
    if not backend.isidentifier() or importlib.util.find_spec(name) is None:
        return BackendSection
    declared: type[BackendSection] = importlib.import_module(name).Section
    return declared
