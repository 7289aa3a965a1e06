"""Find runners on disk: a backend NAME is a folder of this name that holds `wattdock_NAME.py`.

Starts nothing and imports nothing of theirs; there is no list of names to edit.
"""

from __future__ import annotations

import os
from pathlib import Path

from wattdock.errors import ConfigError
from wattdock.text import nearest

REPO = Path(__file__).resolve().parents[3]
PROTO_DIR = REPO / "proto"
COMMON_DIR = REPO / "runners" / "common"


def runners_path() -> tuple[Path, ...]:
    """Return the folders that hold runners, searched in this order: those in WATTDOCK_RUNNERS, then `runners/` here."""
    named = os.environ.get("WATTDOCK_RUNNERS", "").split(os.pathsep)
    return (*(Path(folder).absolute() for folder in named if folder), REPO / "runners")


def backends() -> tuple[str, ...]:
    """Return the names of all backends that can be found, sorted."""
    return tuple(
        sorted(
            {
                module.parent.name
                for folder in runners_path()
                for module in folder.glob("*/wattdock_*.py")
                if module.stem == f"wattdock_{module.parent.name}"
            }
        )
    )


def find_runner(backend: str) -> Path:
    """Return the folder of a backend's runner.

    Raises:
        ConfigError: There is none of this name; holds the nearest one that exists.
    """
    known = backends()
    if backend in known:
        return next(
            folder / backend for folder in runners_path() if (folder / backend / f"wattdock_{backend}.py").is_file()
        )
    near = nearest(backend, known)
    hint = f"did you mean {near!r}?" if near else "set WATTDOCK_RUNNERS to a folder that holds it"
    raise ConfigError(f"unknown backend {backend!r} (there are: {', '.join(known) or 'none'}); {hint}")
