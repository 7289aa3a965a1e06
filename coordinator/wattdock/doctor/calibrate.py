"""Calibrate this machine's energy counters with load pulses, one GPU after another.

The load comes from a separate process in a backend's environment: the host itself never opens a CUDA context.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import TYPE_CHECKING

from wattdock.doctor.calibration import recorded_card
from wattdock.errors import Cause, PreflightError
from wattdock.host import GpuInventory, leases
from wattdock.launch import choose_launcher
from wattdock.launch.images import read_lock
from wattdock.metering import MeterCard, choose_meter
from wattdock.planning import choose_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wattdock.config import ExperimentConfig

# Limits of the program that makes the load: a pulse and its gap take 1.3 s, the preparation a minute at most.
PULSE_LIMIT_S, START_LIMIT_S = 3.0, 120.0


def calibrate_meters(
    config: ExperimentConfig, *, home: Path, pulses: int, say: Callable[[str], None]
) -> Iterator[MeterCard]:
    """Store and yield a card of each named GPU's counter; all GPUs are leased until the last card is made.

    Args:
        config: Which GPUs, whose environment makes the load, how long to wait for others.
        home: WATTDOCK_HOME, where cards are stored.
        pulses: Load pulses per GPU; each takes about 1.3 s.

    Raises:
        PreflightError: There is no such GPU, somebody uses it, or the backend has no program that makes load pulses.
        RunnerError: The load could not be made.
        MeterError: A GPU's counter cannot be read.
        StoreError: A card cannot be written.
    """
    host_gpus = GpuInventory.here()
    if not host_gpus.gpus:
        what = f"no energy counter to calibrate on this machine: {host_gpus.reason or 'it has no GPU'}"
        raise PreflightError(what, cause=Cause.NO_GPU)
    if not isinstance(config.gpus, list):
        config = config.model_copy(update={"gpus": [gpu.index for gpu in host_gpus.gpus]})
    gpus = choose_gpus(config, host_gpus)
    meter = choose_meter("nvml", host_gpus)
    as_process = {"launcher": "process", "container": config.container.model_copy(update={"locked": False})}
    choice = choose_launcher(config.model_copy(update=as_process), on_gpu=True, home=home, lock=read_lock)
    choice.check()
    program = choice.runner_dir / f"wattdock_{config.backend}_pulses.py"
    if not program.exists():
        raise PreflightError(f"backend {config.backend} makes no load pulses", "use --backend pytorch")
    request = leases.LeaseRequest(tuple(gpu.uuid for gpu in gpus), config.exclusive, config.wait_s)
    with ExitStack() as stack:
        run = stack.enter_context(choice.program(program, say=say))
        stack.enter_context(leases.hold(request, say))
        for gpu in gpus:
            say(f"GPU {gpu.index}: {pulses} load pulses")
            limit_s = START_LIMIT_S + pulses * PULSE_LIMIT_S
            card = recorded_card(
                gpu, meter.new_meter(every_change=True), functools.partial(run, gpu.index, limit_s, str(pulses))
            )
            say(f"stored in {card.store(home)}")
            yield card
