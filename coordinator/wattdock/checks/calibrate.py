"""Calibrate this machine's energy counters with load pulses, one GPU after another.

The load comes from a separate process in a backend's environment: the host itself never opens a CUDA context.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import TYPE_CHECKING

from wattdock.checks.doctor import named_gpus
from wattdock.errors import PreflightError
from wattdock.host import inventory, leases
from wattdock.launch import choose_launcher
from wattdock.launch.images import read_lock
from wattdock.metering import MeterCard, choose_meter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from wattdock.config import ExperimentConfig
    from wattdock.host import Gpu, GpuInventory

# A pulse and its gap take 1.3 s; making the arrays and finding how many kernels fill a pulse, a minute at most.
PULSE_LIMIT_S, START_LIMIT_S = 3.0, 120.0


def calibrate_meters(
    config: ExperimentConfig, *, home: Path, pulses: int, say: Callable[[str], None]
) -> Iterator[MeterCard]:
    """Make, keep and yield the card of each GPU that is named; all are leased until the last card is made.

    Args:
        config: Which GPUs, whose environment makes the load, how long to wait for others.
        home: WATTDOCK_HOME, where cards are kept.
        pulses: Load pulses per GPU; each takes about 1.3 s.

    Raises:
        PreflightError: There is no such GPU, somebody uses it, or the backend has no program that makes load pulses.
        RunnerError: The load could not be made.
        MeterError: A GPU's counter cannot be read.
        StoreError: A card cannot be written.
    """
    found = inventory()
    gpus = _free_gpus(config, found)
    meter = choose_meter("nvml", found)
    as_process = {"launcher": "process", "container": config.container.model_copy(update={"locked": False})}
    choice = choose_launcher(config.model_copy(update=as_process), on_gpu=True, home=home, lock=read_lock)
    program = choice.runner_dir / f"wattdock_{config.backend}_pulses.py"
    if not program.exists():
        raise PreflightError(f"backend {config.backend} makes no load pulses; use --backend pytorch")
    wanted = leases.LeaseRequest(tuple(gpu.uuid for gpu in gpus), config.exclusive, "doctor --meter", config.wait_s)
    with ExitStack() as stack:
        run = stack.enter_context(choice.program(program, say=say))
        stack.enter_context(leases.held(wanted, say))
        for gpu in gpus:
            say(f"GPU {gpu.index}: {pulses} load pulses")
            limit_s = START_LIMIT_S + pulses * PULSE_LIMIT_S
            card = MeterCard.record(gpu, meter.new_meter(), functools.partial(run, gpu.index, limit_s, str(pulses)))
            say(f"kept in {card.store(home)}")
            yield card


def _free_gpus(config: ExperimentConfig, found: GpuInventory) -> Sequence[Gpu]:
    gpus = named_gpus(config, found)
    named = config.gpus if isinstance(config.gpus, list) else ()
    if not gpus or len(gpus) < len(named):
        there = found.reason or f"there are GPUs {', '.join(str(gpu.index) for gpu in found.gpus) or 'none'}"
        raise PreflightError(f"no energy counter to calibrate on {list(named) or 'this machine'}: {there}")
    for gpu in gpus:
        if occupied := found.why_occupied(gpu):
            raise PreflightError(f"GPU {gpu.index}: {occupied}; wait for it to end, or choose others with --gpus")
    return gpus
