"""Rooms depend on each other one way, and only through their doors."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path

import pytest
from sources import nodes

SOURCE = Path(__file__).resolve().parents[1] / "coordinator/wattdock"
# From the ground up: a room may import from those before it.
ROOMS = (
    *("config", "host", "inputs", "launch", "metering", "records", "runner", "analysis", "audit", "store"),
    *("planning", "study", "execution", "fleet", "doctor", "reports", "publish", "live", "console"),
)
# Rooms within a room that have a door of their own.
SUB_ROOMS = ("launch.images", "study.tasks", "console.progress", "live.server", "reports.charts")
# Above all rooms: what `import wattdock` offers.
API = SOURCE / "api.py"
AT_THE_ROOT = 10
# Names that a door may export.
DOOR = 10


@cache
def imports(file: Path) -> list[str]:
    """Return the modules of ours that a file imports from, also inside functions, as dotted names below wattdock."""
    modules: list[str] = []
    for node in nodes(file):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: imports are absolute"
            # `from wattdock import execution` imports a room, too.
            modules += (
                [f"wattdock.{alias.name}" for alias in node.names] if node.module == "wattdock" else [node.module or ""]
            )
    return [module.partition(".")[2] for module in modules if module.split(".")[0] == "wattdock"]


def files(room: str) -> list[Path]:
    return sorted((SOURCE / room).rglob("*.py"))


def test_every_folder_is_a_room() -> None:
    """A folder that is missing in the order would be held to nothing."""
    folders = {file.parent.relative_to(SOURCE).parts[0] for file in SOURCE.rglob("*.py") if file.parent != SOURCE}
    assert folders == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    """One direction of flow, and so no cycle."""
    below = ROOMS[: ROOMS.index(room) + 1]
    upward = [
        (str(file.relative_to(SOURCE)), name)
        for file in files(room)
        for name in imports(file)
        if name.split(".")[0] in ROOMS and name.split(".")[0] not in below
    ]
    assert upward == []


@pytest.mark.parametrize("room", ROOMS)
def test_nobody_imports_past_a_door(room: str) -> None:
    """What a room needs from another one, that one's door exports."""
    past = [
        (str(file.relative_to(SOURCE)), name)
        for file in [*files(room), API]
        for name in imports(file)
        if "." in name and name.split(".")[0] in ROOMS and name.split(".")[0] != room and name not in SUB_ROOMS
    ]
    assert past == []


def test_the_root_stays_small_and_imports_no_room() -> None:
    """What every room shares is little, and knows none of them."""
    modules = [file for file in SOURCE.glob("*.py") if file.name not in ("__init__.py", "__main__.py", API.name)]
    assert len(modules) <= AT_THE_ROOT
    assert [(file.name, name) for file in modules for name in imports(file) if name.split(".")[0] in ROOMS] == []


def test_nothing_imports_what_is_above_all_rooms() -> None:
    """But the package itself, when one of its names is used."""
    importing = [file.name for file in SOURCE.rglob("*.py") if "api" in imports(file)]
    assert importing == ["__init__.py"]


@pytest.mark.parametrize("room", [*ROOMS, *SUB_ROOMS])
def test_a_door_is_narrow_and_says_what_is_behind_it(room: str) -> None:
    """A door exports about ten names, each of which exists."""
    door = importlib.import_module(f"wattdock.{room}")
    exported = getattr(door, "__all__", [])
    assert door.__doc__
    # Nothing imports the command line, but for its progress.
    assert room == "console" or exported
    assert len(exported) <= DOOR
    assert [name for name in exported if not hasattr(door, name)] == []
