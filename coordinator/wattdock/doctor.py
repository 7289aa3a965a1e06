"""What `wattdock doctor` does: joins inventory, environments and cards."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from wattdock.errors import PreflightError
from wattdock.host.folders import wattdock_home
from wattdock.host.gpus import inventory
from wattdock.launch.environment import ensure_environment
from wattdock.launch.interpreter import check_python
from wattdock.launch.runners import find_runner
from wattdock.meter_cards import measure_card, store_card

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from wattdock.results.metrology import MeterCard


def meter_cards(
    chosen: Sequence[int | str] | None, *, backend: str, python: Path | None, pulses: int
) -> Iterator[MeterCard]:
    """Make, keep and yield the card of each chosen GPU, one after another.

    Args:
        chosen: Indices or UUIDs; None for every GPU of the host.

    Raises:
        PreflightError: There is no such GPU.
        RunnerError, MeterError, StoreError: As in `measure_card` and `store_card`.
    """
    found = inventory()
    gpus = [gpu for gpu in found.gpus if chosen is None or gpu.index in chosen or gpu.uuid in chosen]
    if not gpus or (chosen is not None and len(gpus) < len(chosen)):
        reason = found.reason or f"there are GPUs {', '.join(str(gpu.index) for gpu in found.gpus)}"
        raise PreflightError(f"no energy counter to characterise on {chosen or 'this machine'}: {reason}")
    runner_dir = find_runner(backend)
    if not (runner_dir / f"wattdock_{backend}_pulses.py").exists():
        raise PreflightError(f"backend {backend} makes no load pulses; use --backend pytorch")
    interpreter = check_python(python) if python else ensure_environment(runner_dir, variant="cuda", progress=_say)
    for gpu in gpus:
        _say(f"GPU {gpu.index}: {pulses} load pulses")
        card = measure_card(gpu, runner_dir=runner_dir, python=interpreter, pulses=pulses)
        _say(f"kept in {store_card(card, home=wattdock_home())}")
        yield card


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
