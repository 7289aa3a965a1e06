"""Make and keep the cards of this machine's energy counters, one GPU after another."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from wattdock.doctor.examine import gpus_asked
from wattdock.errors import PreflightError
from wattdock.host.gpus import inventory
from wattdock.host.leases import Wanted, held
from wattdock.host.selection import why_occupied
from wattdock.launch.environment import environment_in_use
from wattdock.launch.interpreter import check_python
from wattdock.launch.runners import find_runner
from wattdock.meter_cards import measure_card, store_card

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from wattdock.config.experiment import ExperimentConfig
    from wattdock.host.gpus import GpuInfo, GpuInventory
    from wattdock.progress import Progress
    from wattdock.results.metrology import MeterCard


def meter_cards(config: ExperimentConfig, *, home: Path, pulses: int, progress: Progress) -> Iterator[MeterCard]:
    """Make, keep and yield the card of each GPU that is asked for; all are leased until the last one is made.

    Args:
        config: Which GPUs, whose environment makes the load, how long to wait for others.
        home: WATTDOCK_HOME, where cards are kept.
        pulses: Load pulses per GPU; each takes about 1.3 s.

    Raises:
        PreflightError: There is no such GPU, somebody uses it, or the backend makes no load pulses.
        RunnerError, MeterError, StoreError: As in `measure_card` and `store_card`.
    """
    gpus = _free_gpus(config)
    runner_dir = find_runner(config.backend)
    if not (runner_dir / f"wattdock_{config.backend}_pulses.py").exists():
        raise PreflightError(f"backend {config.backend} makes no load pulses; use --backend pytorch")
    wanted = Wanted(tuple(gpu.uuid for gpu in gpus), config.exclusive, "doctor --meter", config.wait_s)
    with ExitStack() as stack:
        python = _interpreter(config, runner_dir, progress, stack)
        stack.enter_context(held(wanted, progress.say))
        for gpu in gpus:
            progress.say(f"GPU {gpu.index}: {pulses} load pulses")
            card = measure_card(gpu, runner_dir=runner_dir, python=python, pulses=pulses)
            progress.say(f"kept in {store_card(card, home=home)}")
            yield card


def _interpreter(config: ExperimentConfig, runner_dir: Path, progress: Progress, stack: ExitStack) -> Path:
    if config.runner_python:
        return check_python(config.runner_python)
    return stack.enter_context(environment_in_use(runner_dir, variant="cuda", progress=progress.say))


def _free_gpus(config: ExperimentConfig) -> Sequence[GpuInfo]:
    found = inventory()
    gpus = gpus_asked(config, found)
    if not gpus or (isinstance(config.gpus, list) and len(gpus) < len(config.gpus)):
        raise PreflightError(f"no energy counter to characterise on {_wanted(config)}: {_there(found)}")
    for gpu in gpus:
        if occupied := why_occupied(gpu, found):
            raise PreflightError(f"GPU {gpu.index}: {occupied}; wait for it to end, or choose others with --gpus")
    return gpus


def _wanted(config: ExperimentConfig) -> str:
    return str(config.gpus) if isinstance(config.gpus, list) else "this machine"


def _there(found: GpuInventory) -> str:
    return found.reason or f"there are GPUs {', '.join(str(gpu.index) for gpu in found.gpus) or 'none'}"
