"""Where a model that is given by its path lies: a folder, a snapshot in the Hugging Face hub's cache, or one GGUF file.

Must not know: what a model's files hold.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError, PreflightError
from wattdock.files import expanded

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = re.compile(r"[0-9a-f]{40}")
SNAPSHOT = re.compile(rf".*/models--([^/]+)/snapshots/({COMMIT.pattern})")


@dataclass(frozen=True)
class Location:
    """Where a model lies.

    Attributes:
        folder: Absolute; it may not exist.
        gguf: The name of the GGUF file that was chosen there; empty leaves the choice to the folder.
    """

    folder: Path
    gguf: str = ""

    @property
    def cached(self) -> tuple[str, str] | None:
        """Its OWNER/NAME and commit, where it is a snapshot in the hub's cache.

        Source: `repo_folder_name` of huggingface_hub 2.4; no id holds two hyphens side by side.
        """
        snapshot = SNAPSHOT.fullmatch(str(self.folder))
        return (snapshot[1].replace("--", "/"), snapshot[2]) if snapshot else None

    @property
    def name(self) -> str:
        """The model's name for tables."""
        return self.gguf or (self.cached[0] if self.cached else self.folder.name)


def locate(path: Path) -> Location:
    """Return where the model lies that a person gave this path for.

    Raises:
        ConfigError: No path can be so.
        PreflightError: This user may not look there.
    """
    path = expanded(path).absolute()
    try:
        is_file = path.suffix == ".gguf" and path.is_file()
        place = Location(path.parent, path.name) if is_file else Location(path)
        # A look inside shows whether this user may enter, which `exists` of Python 3.14 hides.
        with suppress(FileNotFoundError, NotADirectoryError):
            (place.folder / "config.json").stat()
    except PermissionError as error:
        raise PreflightError(f"cannot read {path}: {error.strerror}", "see that this user may read it") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "check the path") from error
    return place
