"""Make and keep the cards of this machine's energy counters, one GPU after another.

The load comes from a separate process in a backend's environment: the host itself never opens a CUDA context.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wattdock.checks.doctor.examine import gpus_asked
from wattdock.checks.doctor.pulses import Pulse, meter_card
from wattdock.errors import MeterError, PreflightError, RunnerError
from wattdock.host import inventory, leases
from wattdock.launch import LaunchSpec, find_runner, interpreter, runner_variables
from wattdock.metering import NvmlMeter, store_card

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from wattdock.config import ExperimentConfig
    from wattdock.host import Gpu, GpuInventory
    from wattdock.metering import MeterCard


# A pulse and its gap take 1.3 s; making the arrays and finding how many kernels fill a pulse, a minute at most.
PULSE_LIMIT_S, START_LIMIT_S = 3.0, 120.0


def meter_cards(
    config: ExperimentConfig, *, home: Path, pulses: int, say: Callable[[str], None]
) -> Iterator[MeterCard]:
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
    wanted = leases.Wanted(tuple(gpu.uuid for gpu in gpus), config.exclusive, "doctor --meter", config.wait_s)
    with ExitStack() as stack:
        made = interpreter(runner_dir, named=config.runner_python, variant="cuda", progress=say)
        python = stack.enter_context(made)
        stack.enter_context(leases.held(wanted, say))
        for gpu in gpus:
            say(f"GPU {gpu.index}: {pulses} load pulses")
            card = measure_card(gpu, runner_dir=runner_dir, python=python, pulses=pulses)
            say(f"kept in {store_card(card, home=home)}")
            yield card


def _free_gpus(config: ExperimentConfig) -> Sequence[Gpu]:
    found = inventory()
    gpus = gpus_asked(config, found)
    if not gpus or (isinstance(config.gpus, list) and len(gpus) < len(config.gpus)):
        raise PreflightError(f"no energy counter to characterise on {_wanted(config)}: {_there(found)}")
    for gpu in gpus:
        if occupied := found.why_occupied(gpu):
            raise PreflightError(f"GPU {gpu.index}: {occupied}; wait for it to end, or choose others with --gpus")
    return gpus


def _wanted(config: ExperimentConfig) -> str:
    return str(config.gpus) if isinstance(config.gpus, list) else "this machine"


def _there(found: GpuInventory) -> str:
    return found.reason or f"there are GPUs {', '.join(str(gpu.index) for gpu in found.gpus) or 'none'}"


def measure_card(gpu: Gpu, *, runner_dir: Path, python: Path, pulses: int) -> MeterCard:
    """Return the card of one GPU, made by load pulses on it; takes about 1.3 s per pulse.

    Args:
        runner_dir: The folder of a backend that holds `wattdock_<name>_pulses.py`.
        python: An interpreter with that backend's packages.

    Raises:
        RunnerError: The load could not be made.
        MeterError: The GPU's counter cannot be read.
    """
    meter = NvmlMeter()
    meter.start()
    try:
        seen = _pulses(gpu, runner_dir, python, pulses)
    finally:
        timeline = meter.stop()
    recorded = timeline.gpus.get(gpu.uuid)
    if recorded is None or recorded.energy_source != "counter" or recorded.period_s is None:
        raise MeterError(
            f"{gpu.name} {gpu.uuid} has no energy counter to characterise: {timeline.reason or 'see gpus'}"
        )
    return meter_card(recorded, seen, gpu, measured_utc=datetime.now(UTC).isoformat(timespec="seconds"))


def _pulses(gpu: Gpu, runner_dir: Path, python: Path, count: int) -> list[Pulse]:
    program = runner_dir / f"wattdock_{runner_dir.name}_pulses.py"
    spec = LaunchSpec(
        backend=runner_dir.name,
        runner_dir=runner_dir,
        log_path=runner_dir,
        gpu_indices=(gpu.index,),
        gpu_uuids=(gpu.uuid,),
        model_path=runner_dir,
        labels={},
    )
    variables = runner_variables(spec, os.environ, keep_pythonpath=True)
    try:
        done = subprocess.run(
            [str(python), str(program), str(count)],
            env=variables,
            capture_output=True,
            text=True,
            timeout=START_LIMIT_S + count * PULSE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunnerError(f"{count} load pulses on GPU {gpu.index} did not end in {error.timeout:.0f} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise RunnerError(f"no load on GPU {gpu.index}: {last}; name an interpreter with --runner-python")
    return [Pulse(*json.loads(line)) for line in done.stdout.splitlines()]
