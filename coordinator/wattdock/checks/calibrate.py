"""Calibrate this machine's energy counters with load pulses, one GPU after another.

The load comes from a separate process in a backend's environment: the host itself never opens a CUDA context.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wattdock.checks.doctor import named_gpus
from wattdock.errors import MeterError, PreflightError, RunnerError
from wattdock.host import inventory, leases
from wattdock.launch import LaunchSpec, find_runner, interpreter, runner_variables
from wattdock.metering import MeterCard, choose_meter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from wattdock.config import ExperimentConfig
    from wattdock.host import Gpu, GpuInventory
    from wattdock.metering import Meter

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
    runner_dir = find_runner(config.backend)
    program = runner_dir / f"wattdock_{config.backend}_pulses.py"
    if not program.exists():
        raise PreflightError(f"backend {config.backend} makes no load pulses; use --backend pytorch")
    wanted = leases.Wanted(tuple(gpu.uuid for gpu in gpus), config.exclusive, "doctor --meter", config.wait_s)
    with ExitStack() as stack:
        made = interpreter(runner_dir, named=config.runner_python, variant="cuda", progress=say)
        python = stack.enter_context(made)
        stack.enter_context(leases.held(wanted, say))
        for gpu in gpus:
            say(f"GPU {gpu.index}: {pulses} load pulses")
            card = _card(gpu, meter.new_meter(), program, python, pulses)
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


def _card(gpu: Gpu, meter: Meter, program: Path, python: Path, count: int) -> MeterCard:
    meter.start()
    try:
        pulses = _make_pulses(gpu, program, python, count)
    finally:
        timeline = meter.stop()
    recorded = timeline.gpus.get(gpu.uuid)
    if recorded is None or recorded.energy_source != "counter" or recorded.period_s is None:
        reason = timeline.reason or "see wattdock doctor"
        raise MeterError(f"{gpu.name} {gpu.uuid} has no energy counter to calibrate: {reason}")
    return MeterCard.from_pulses(recorded, pulses, gpu, measured_utc=datetime.now(UTC).isoformat(timespec="seconds"))


def _make_pulses(gpu: Gpu, program: Path, python: Path, count: int) -> list[tuple[str, int, int]]:
    """Load a GPU with pulses from a process of a backend's environment; return when each really began and ended."""
    folder = program.parent
    spec = LaunchSpec(
        backend=folder.name, runner_dir=folder, log_path=folder, gpu_indices=(gpu.index,), gpu_uuids=(gpu.uuid,)
    )
    limit_s = START_LIMIT_S + count * PULSE_LIMIT_S
    try:
        done = subprocess.run(
            [str(python), str(program), str(count)],
            env=runner_variables(spec, os.environ, keep_pythonpath=True),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunnerError(f"{count} load pulses on GPU {gpu.index} did not end in {limit_s:.0f} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise RunnerError(f"no load on GPU {gpu.index}: {last}; name an interpreter with --runner-python")
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]
