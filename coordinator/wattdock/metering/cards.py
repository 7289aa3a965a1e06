"""Keep and find the cards of this machine's energy counters; `doctor.cards` makes them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pydantic import ValidationError

from wattdock.errors import StoreError
from wattdock.files import write_whole
from wattdock.metering.card import MeterCard
from wattdock.metering.timeline import LagModel, MeterEvent
from wattdock.text import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from wattdock.host import Gpu
    from wattdock.metering.timeline import GpuTimeline, Timeline


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


def with_cards(timeline: Timeline, gpus: Sequence[Gpu], *, home: Path, progress: Callable[[str], None]) -> Timeline:
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


def _of_another(card: MeterCard, gpu: Gpu | None) -> str | None:
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
