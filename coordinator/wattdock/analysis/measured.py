"""What was measured of an experiment: the one form that all figures are computed from. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from wattdock.analysis.joules import Joules, SpanJoules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import ExperimentConfig
    from wattdock.metering import Span
    from wattdock.records import EnvironmentSnapshot, PassRecord, RestartRecord
    from wattdock.values import EnergyBoundary

DIFFERENT_GPUS = "restarts used different GPUs"
DIFFERENT_BOUNDARIES = "energy counters cover the GPU board in one case and the module in another"


@dataclass(frozen=True)
class Measured:
    """An experiment's settings, its restarts, its GPUs, and the energy of any span on these.

    Attributes:
        used: UUIDs of the GPUs that held a part of the model.
        bystanders: UUIDs of the host's other GPUs.
        boundary: What the joules of the GPUs used cover.
    """

    config: ExperimentConfig
    restarts: Sequence[RestartRecord]
    used: tuple[str, ...] = ()
    bystanders: tuple[str, ...] = ()
    energy: SpanJoules = field(default_factory=SpanJoules)
    boundary: EnergyBoundary = "gpu_boards"

    @classmethod
    def of(
        cls, config: ExperimentConfig, restarts: Sequence[RestartRecord], environment: EnvironmentSnapshot
    ) -> Measured:
        """Return what these restarts measured; no energy is summed over different GPUs or different boundaries.

        An engine that places a model by itself may take other GPUs in another restart.
        """
        placements = {
            frozenset(restart.environment.gpu_uuids) for restart in restarts if restart.passes and restart.environment
        }
        used = tuple(environment.gpu_uuids)
        gpus = [restart.gpus[uuid] for restart in restarts for uuid in used if uuid in restart.gpus]
        boundaries = {gpu.boundary for gpu in gpus}
        different = DIFFERENT_GPUS if len(placements) > 1 else DIFFERENT_BOUNDARIES if len(boundaries) > 1 else None
        return cls(
            config,
            restarts,
            used,
            tuple(gpu.uuid for gpu in environment.host_gpus if gpu.uuid not in used),
            SpanJoules(different),
            "module" if "module" in boundaries else "gpu_boards",
        )

    @cached_property
    def passes(self) -> list[tuple[RestartRecord, PassRecord]]:
        """Every measured pass beside its restart, in order."""
        return [(restart, run_pass) for restart in self.restarts for run_pass in restart.passes]

    @cached_property
    def pass_records(self) -> list[PassRecord]:
        """Every measured pass, in order."""
        return [run_pass for _, run_pass in self.passes]

    @property
    def passes_s(self) -> float:
        """Duration of all measured passes together, s."""
        return sum(run_pass.span.duration_s for run_pass in self.pass_records)

    @property
    def in_flight(self) -> int:
        """Requests that all engines together serve at a time."""
        return self.config.workload.batch_size

    def energy_of(
        self, restart: RestartRecord, span: Span, uuids: Sequence[str] | None = None, *, hbm: bool = False
    ) -> Joules:
        """Return the energy of a span of a restart on the GPUs `uuids`, or else on those used.

        Args:
            hbm: Only the part that the GPUs' memory used.
        """
        return self.energy.of(restart.timeline, span, self.used if uuids is None else uuids, hbm=hbm)
