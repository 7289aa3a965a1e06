"""Images and their locks, for a terminal."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rich.text import Text

from wattdock.reports.terminal import NOTHING, Sheet, console
from wattdock.text import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.launch.images import ImageStatus

SHOWN = 19


def print_images(found: Sequence[ImageStatus], *, as_json: bool) -> None:
    """Print one line per image, then what is open or differs."""
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
        return
    rows = [(one.name, (one.here or NOTHING)[:SHOWN], _short(one.locked), _state(one)) for one in found]
    out = console()
    out.print(Sheet(("image", "on this engine", "locked", "state"), rows))
    for one in found:
        is_open = (f"{key} is open: {why}" for key, why in one.unresolved.items())
        for line in (*one.differences, *is_open, *(f"not checked: {what}" for what in one.unchecked)):
            out.print(Text(f"{one.name}: {line}"), soft_wrap=True)


def _state(one: ImageStatus) -> str:
    if one.differences:
        return "differs"
    return "not checked" if one.unchecked else "as locked"


def _short(reference: str | None) -> str:
    if reference is None:
        return NOTHING
    name, at, digest = reference.rpartition("@")
    return f"{name}{at}{digest[:SHOWN]}"
