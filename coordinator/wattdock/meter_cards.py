"""Make, keep and find the cards of this machine's energy counters.

The load comes from a separate process in a backend's environment: the host itself never opens a CUDA context.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import ValidationError

from wattdock.durable import write_whole
from wattdock.errors import MeterError, RunnerError, StoreError
from wattdock.json_text import json_text
from wattdock.launch.protocol import LaunchSpec
from wattdock.launch.variables import runner_variables
from wattdock.meter.nvml import NvmlMeter
from wattdock.meter.timeline import LagModel, MeterEvent
from wattdock.metrology import Pulse, meter_card
from wattdock.results.metrology import MeterCard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from wattdock.host.gpus import GpuInfo
    from wattdock.meter.timeline import GpuTimeline, Timeline

# A pulse and its gap take 1.3 s; making the arrays and finding how many kernels fill a pulse, a minute at most.
PULSE_LIMIT_S, START_LIMIT_S = 3.0, 120.0


def measure_card(gpu: GpuInfo, *, runner_dir: Path, python: Path, pulses: int) -> MeterCard:
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


def _pulses(gpu: GpuInfo, runner_dir: Path, python: Path, count: int) -> list[Pulse]:
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


def store_card(card: MeterCard, *, home: Path) -> Path:
    """Keep a card, instead of an older one of the same GPU, and return its file.

    Raises:
        StoreError: It cannot be written.
    """
    file = _file(card.gpu_uuid, home)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, f"{json_text(card, indent=2)}\n".encode())
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}; choose another WATTDOCK_HOME") from error
    return file


def load_cards(uuids: Sequence[str], *, home: Path, progress: Callable[[str], None]) -> dict[str, MeterCard]:
    """Return the cards that are kept, by UUID; one that cannot be read is told and left out."""
    cards = {}
    for uuid in uuids:
        if not (file := _file(uuid, home)).exists():
            continue
        try:
            cards[uuid] = MeterCard.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            progress(f"{file} cannot be read ({type(error).__name__}); make it anew with wattdock doctor --meter")
    return cards


def with_cards(timeline: Timeline, gpus: Sequence[GpuInfo], *, home: Path, progress: Callable[[str], None]) -> Timeline:
    """Return `timeline` with the lags that were measured on its GPUs, instead of the one that is assumed.

    A card that does not fit is told, and stands among the events of its GPU.

    Args:
        gpus: What the timeline's GPUs are now.
    """
    cards = load_cards(list(timeline.gpus), home=home, progress=progress)
    infos = {gpu.uuid: gpu for gpu in gpus}
    seen = {}
    for uuid, gpu in timeline.gpus.items():
        card = cards.get(uuid)
        if card and (why := card.doubt or _of_another(card, infos.get(uuid))):
            message = f"card of {card.measured_utc} not used, the lag is assumed: {why}; see wattdock doctor --meter"
            progress(f"{uuid}: {message}")
            event = MeterEvent(timeline.start_ns, "card_unused", message)
            seen[uuid] = dataclasses.replace(gpu, events=(*gpu.events, event))
        else:
            seen[uuid] = _with_card(gpu, card)
    return dataclasses.replace(timeline, gpus=seen)


def _of_another(card: MeterCard, gpu: GpuInfo | None) -> str | None:
    """Why a card does not say how this GPU is read; None where it does."""
    if gpu is None or gpu.driver_version is None:
        return "which GPU and driver this is, is unknown"
    made = f"{card.gpu_name}, driver {card.driver_version}"
    here = f"{gpu.name}, driver {gpu.driver_version}"
    return None if made == here else f"it was made on {made}, and this is {here}"


def _with_card(gpu: GpuTimeline, card: MeterCard | None) -> GpuTimeline:
    """Return the timeline that takes its lag from a card, where that has one."""
    if card is None or card.lag_s is None or card.lag_std_s is None:
        return gpu
    return dataclasses.replace(gpu, card=card.measured_utc, lag=LagModel(card.lag_s, card.lag_std_s))


def _file(uuid: str, home: Path) -> Path:
    return home / "meter-cards" / f"{uuid}.json"
