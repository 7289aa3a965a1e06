"""Rooms depend on each other one way, and only through their doors."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import get_args

import pytest
from sources import nodes

from wattdock.config import ExperimentConfig

SOURCE = Path(__file__).resolve().parents[1] / "coordinator/wattdock"
RUNNER = Path(__file__).resolve().parents[1] / "runners/common/wattdock_runner"
# From the ground up: a room may import from those before it.
ROOMS = (
    *("config", "host", "inputs", "launch", "metering", "quality", "records", "runner", "analysis", "audit"),
    *("imported", "store"),
    *("planning", "study", "execution", "nodes", "fleet", "doctor", "reports", "forms", "publish", "live", "console"),
)
# Rooms within a room that have a door of their own.
SUB_ROOMS = (
    *(
        "inputs.architecture",
        "host.jobs",
        "launch.images",
        "study.tasks",
        "console.progress",
        "console.views",
        "live.server",
        "config.nodes",
        "metering.node_clock",
    ),
    *("reports.cells", "reports.charts", "reports.wording"),
)
# Values of settings that are the names of files, which `import_module(f"…")` imports.
NAMED = {
    value for setting in ("launcher", "meter") for value in get_args(ExperimentConfig.model_fields[setting].annotation)
}
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


def file_of(module: str) -> Path | None:
    """Return the file of a module of ours; None where a dotted name is none."""
    path = SOURCE.parent.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


@cache
def bound_names(file: Path) -> dict[str, tuple[str, str]]:
    """Return what the imports of a file bind: by name here, the module and the name there."""
    imports = [node for node in nodes(file) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: (node.module or "", alias.name) for node in imports for alias in node.names}


def defining_file(module: str, name: str) -> Path | None:
    """Return the file of ours that defines a name, behind the doors that pass it on."""
    if inner := file_of(f"{module}.{name}"):
        return inner
    file = file_of(module)
    if file and file.name == "__init__.py" and name in (passed_on := bound_names(file)):
        return defining_file(*passed_on[name])
    return file


@cache
def imported_files(file: Path) -> set[str]:
    """Return the files that a file imports from, also inside functions; its own door too, unless for a file there."""
    found = {file_of(alias.name) for node in nodes(file) if isinstance(node, ast.Import) for alias in node.names}
    for module, name in bound_names(file).values():
        found.add(defining_file(module, name))
        if (door := file_of(module)) and door == file.parent / "__init__.py" and not file_of(f"{module}.{name}"):
            found.add(door)
    starts = [node.values[0] for node in nodes(file) if isinstance(node, ast.JoinedStr) and node.values]
    prefixes = [str(start.value) for start in starts if isinstance(start, ast.Constant)]
    found |= {file_of(f"{prefix}{name}") for prefix in prefixes if prefix.startswith("wattdock.") for name in NAMED}
    return {str(path.relative_to(SOURCE)) for path in found if path and path != file}


def circle_of_files() -> list[str]:
    """Return files of which each imports the next, back to the first; empty if none do."""
    order = {str(file.relative_to(SOURCE)): set(imported_files(file)) for file in SOURCE.rglob("*.py")}
    for file in RUNNER.glob("*.py"):
        modules = {module for module, _ in bound_names(file).values() if module.startswith(f"{RUNNER.name}.")}
        order[f"{RUNNER.name}.{file.stem}"] = modules
    try:
        TopologicalSorter(order).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


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


def test_tests_reach_behind_doors_through_seams_only() -> None:
    """A name that moves behind a door is changed in one file of the tests."""
    tests = Path(__file__).parent
    past = [
        (str(file.relative_to(tests)), name)
        for file in tests.rglob("*.py")
        if file.parent != tests / "seams"
        for name in imports(file)
        if "." in name and name.split(".")[0] in ROOMS and name not in SUB_ROOMS
    ]
    assert past == []


def test_files_import_each_other_in_no_circle() -> None:
    """A file can be read, tested and moved without the files that need it; imports by a setting's value count."""
    assert "launch/docker.py" in imported_files(SOURCE / "launch/choice.py")
    assert "metering/zeus.py" in imported_files(SOURCE / "metering/choice.py")
    assert circle_of_files() == []


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
