"""Which meter an experiment gets on this machine, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from wattdock.errors import Cause, PreflightError
from wattdock.metering.meter import Meter
from wattdock.metering.rapl import POWERCAP, Domains, find_domains
from wattdock.metering.source import Source
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from wattdock.host import GpuInventory

# Values of the setting `meter` that read no GPU; every other one is a file `metering/NAME.py` with a `SOURCE`.
WITHOUT_GPU = ("rapl", "none")
WITHOUT = "use --meter none to run without energy"


@dataclass(frozen=True)
class MeterChoice:
    """A meter and the reasons for it.

    Attributes:
        name: "nvml", "zeus", "rapl" or "none".
        reason: Why this meter.
        no_gpu_reason: Why no GPU is metered; empty where GPUs are.
        domains: RAPL's counters that are recorded too.
    """

    name: str
    reason: str
    no_gpu_reason: str = ""
    domains: Domains = field(default_factory=Domains)

    def new_meter(self, used: Collection[str] | None = None) -> Meter:
        """Return a meter that has not been started; `used` as in `Meter`."""
        is_without_gpu = self.name in WITHOUT_GPU
        source = Source(self.no_gpu_reason, self.name) if is_without_gpu else source_class(self.name)()
        return Meter(source, self.domains.readable, used=used)


def choose_meter(setting: str, inventory: GpuInventory, *, powercap: Path = POWERCAP) -> MeterChoice:
    """Return the meter for a configuration's `meter`.

    Raises:
        PreflightError: This machine cannot have the meter that the setting names.
    """
    if setting == "none":
        return MeterChoice("none", "asked for", "meter: none was asked for")
    domains = find_domains(powercap)
    no_gpu = "" if inventory.gpus else inventory.reason or "no NVIDIA GPU on this machine"
    name, reason = setting, "asked for"
    if setting == "rapl":
        if not domains.readable:
            raise PreflightError(f"meter: rapl: {domains.reason}", WITHOUT)
        no_gpu = "meter: rapl reads CPU packages and memory, no GPU"
    elif setting != "auto":
        if no_gpu:
            raise PreflightError(f"meter: {setting}: {no_gpu}", WITHOUT, cause=Cause.NO_GPU)
        source_class(setting).require_installed()
    elif no_gpu:
        name, reason = "rapl" if domains.readable else "none", no_gpu
    else:
        gpus = pluralize(len(inventory.gpus), "NVIDIA GPU")
        name, reason = "nvml", f"{gpus} found; checked against Zeus with --meter zeus"
    return MeterChoice(name, f"{reason}; {domains}", no_gpu, domains)


def source_class(name: str) -> type[Source]:
    """Return the source of GPUs' counters that `metering/NAME.py` holds."""
    source: type[Source] = import_module(f"wattdock.metering.{name}").SOURCE
    return source
