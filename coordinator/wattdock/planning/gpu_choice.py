"""Which GPUs an experiment runs on, and why the others were not taken. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattdock.errors import Cause, PreflightError
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wattdock.config import ExperimentConfig
    from wattdock.host import Gpu, GpuInventory, leases


@dataclass(frozen=True)
class GpuChoice:
    """What decides which GPUs an experiment gets.

    Attributes:
        config: The experiment.
        inventory: The GPUs of this host.
        visible: The caller's CUDA_VISIBLE_DEVICES, which a scheduler sets: no other GPU is taken.
        leases: Who holds a GPU, by UUID.
        weight_bytes: Size of the model's weights; None where it is not known yet.
    """

    config: ExperimentConfig
    inventory: GpuInventory
    visible: str | None = None
    leases: Mapping[str, leases.Holder] = field(default_factory=dict)
    weight_bytes: int | None = None

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs that the experiment gets; none where it is to run on the CPU.

        Named GPUs come in the order named; else free GPUs of one model, best linked first. A GPU that another
        coordinator has leased is taken only where the experiment allows to wait for it.

        Raises:
            PreflightError: Too few can be had, and the message says why each GPU cannot; or what is asked for cannot be
                metered.
        """
        config, unreadable = self.config, self.inventory.unreadable
        if config.accelerator == "cpu":
            if config.gpus != "auto":
                raise PreflightError(f"accelerator: cpu and gpus: {config.gpus} contradict each other", "drop one")
            return ()
        words = [word.strip() for word in (self.visible or "").split(",")]
        if slices := [word for word in words if word.startswith("MIG-")]:
            raise PreflightError(
                f"CUDA_VISIBLE_DEVICES={self.visible} gives the MIG slice {slices[0]}, which has no energy counter "
                "of its own",
                "ask the scheduler for a whole GPU",
                cause=Cause.MIG_SLICE,
            )
        usable = self.inventory.visible(self.visible)
        hidden = "" if len(usable) == len(self.inventory.gpus) else f" (CUDA_VISIBLE_DEVICES={self.visible})"
        if not usable and self.inventory.gpus and (words[0][:1].isdecimal() or words[0].startswith("GPU-")):
            # No list of none, as of a scheduler's job without GPUs; so the CPU was not meant.
            raise PreflightError(
                f"CUDA_VISIBLE_DEVICES={self.visible} shows none of the GPUs here: {_listed(self.inventory.gpus)}",
                f"unset it, or name each of those once; or {self._otherwise}",
                cause=Cause.NO_GPU,
            )
        if isinstance(config.gpus, list):
            return self._named(config.gpus, usable, hidden)
        if unreadable:
            # Silently running on the CPU, or on a neighbour, would measure something else than was meant.
            remedy = f"name other GPUs with gpus; or {self._otherwise}"
            raise PreflightError(f"{unreadable[0]}: no answer", remedy, cause=Cause.GPU_LOST)
        if not usable and config.gpus == "auto" and config.accelerator == "auto":
            return ()
        return self._best(usable, hidden)

    def _named(self, names: Sequence[int | str], usable: Sequence[Gpu], hidden: str) -> tuple[Gpu, ...]:
        gpus = []
        for name in names:
            if sliced := next((gpu for gpu in usable if name in gpu.mig_slices), None):
                raise PreflightError(
                    f"{name} is a MIG slice of GPU {sliced.index} and has no energy counter of its own",
                    "name a whole GPU with MIG off",
                    cause=Cause.MIG_SLICE,
                )
            found = next((gpu for gpu in usable if name in (gpu.index, gpu.uuid)), None)
            if found is None:
                here = f"GPUs here: {_listed(usable)}{hidden}"
                advice = here if usable else f"{here}; {self._otherwise}"
                raise PreflightError(f"there is no GPU {name!r}", advice, cause=Cause.NO_GPU)
            gpus.append(found)
        if len({gpu.uuid for gpu in gpus}) < len(gpus):
            raise PreflightError(f"gpus: {[gpu.index for gpu in gpus]} names a GPU twice", "name each once")
        if obstacles := self._obstacles(gpus):
            reasons = "; ".join(obstacles.values())
            raise PreflightError(reasons, f"choose others with gpus{self._waiting(gpus)}", cause=Cause.GPU_BUSY)
        return tuple(gpus)

    def _best(self, usable: Sequence[Gpu], hidden: str) -> tuple[Gpu, ...]:
        """The best group of one model; leased GPUs, which have to be waited for, only where there is no other."""

        def linkage(group: tuple[Gpu, ...]) -> tuple[int, int]:
            # The slowest link decides how fast a group is, then all of them.
            ranks = [link.rank for link in self.inventory.links_among({gpu.uuid for gpu in group})]
            return min(ranks, default=0), sum(ranks)

        count, obstacles = self.config.gpus_asked, self._obstacles(usable)
        available = [gpu for gpu in usable if gpu.uuid not in obstacles]
        for candidates in ([gpu for gpu in available if gpu.uuid not in self.leases], available):
            groups = [
                group
                for name in dict.fromkeys(gpu.name for gpu in candidates)
                for group in itertools.combinations([gpu for gpu in candidates if gpu.name == name], count)
            ]
            if groups:
                # The first of equals, lowest indices first, so that the choice is the same every time.
                return max(groups, key=linkage)
        free = _listed(available)
        if len(available) >= count:
            raise PreflightError(
                f"{count} GPUs of one model are needed, free here: {free}", "name GPUs with gpus to mix models"
            )
        reasons = f" ({'; '.join(obstacles.values())})" if obstacles else ""
        raise PreflightError(
            f"{pluralize(count, 'GPU')} needed, free GPUs here: {free}{hidden}{reasons}",
            f"{'ask for fewer; or ' if count > 1 else ''}{self._otherwise}{self._waiting(usable)}",
            cause=Cause.GPU_BUSY,
        )

    @property
    def _otherwise(self) -> str:
        """What helps without these GPUs; the CPU does not where GPUs are required, as for publication."""
        on_cpu = "for speed alone, use --accelerator cpu instead of GPUs"
        return "measure where GPUs are free" if self.config.accelerator == "cuda" else on_cpu

    def _waiting(self, gpus: Iterable[Gpu]) -> str:
        is_leased = any(gpu.uuid in self.leases for gpu in gpus)
        return ", or wait for the lease with --wait SECONDS" if is_leased and not self.config.wait_s else ""

    def _obstacles(self, gpus: Iterable[Gpu]) -> dict[str, str]:
        """Return obstacles by UUID; GPUs without one are absent."""
        return {gpu.uuid: f"GPU {gpu.index}: {reason}" for gpu in gpus if (reason := self._obstacle(gpu))}

    def _obstacle(self, gpu: Gpu) -> str | None:
        if gpu.no_counter:
            return (
                f"{gpu.no_counter}; {'turn MIG off (nvidia-smi -mig 0)' if gpu.mig else 'pass a whole board through'}"
            )
        if holder := self.leases.get(gpu.uuid):
            # Processes on a leased GPU are its holder's and end with the lease.
            return None if self.config.wait_s else f"leased by {holder}"
        if occupied := self.inventory.why_occupied(gpu):
            return occupied
        # Each GPU holds its share of the weights.
        config = self.config
        share_bytes = (self.weight_bytes or 0) * config.section.replicas / config.gpus_asked / config.node_count
        asked_gb = getattr(config.gpus, "min_free_gb", None) or 0.0
        needed, free = max(asked_gb * 1e9, share_bytes), gpu.vram_free_bytes
        if free is not None and free < needed:
            return f"{free / 1e9:.1f} GB free, at least {needed / 1e9:.1f} GB needed"
        return None


def _listed(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.index} ({gpu.uuid}, {gpu.name})" for gpu in gpus) or "none"
