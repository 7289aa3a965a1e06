"""Where a model that is given by its path lies: a folder, or one GGUF file in a folder.

Must not know: what a model's files hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.files import expanded

if TYPE_CHECKING:
    from pathlib import Path


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
    def name(self) -> str:
        """The model's name for tables."""
        return self.gguf or self.folder.name


def locate(path: Path) -> Location:
    """Return where the model lies that a person gave this path for."""
    path = expanded(path).absolute()
    if path.suffix == ".gguf" and path.is_file():
        return Location(path.parent, path.name)
    return Location(path)
