"""Stored results for a page: a row each, the report of one or of its study, two of them compared."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock.errors import Cause, ConfigError
from wattdock.files import STUDIES
from wattdock.host import folders
from wattdock.live.order import ask
from wattdock.opening import proc_path, read_regular
from wattdock.owned_folder import OwnedFolder
from wattdock.store import select

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = (
    *("name", "status", "publishable", "backend", "model", "gpus", "batch_size", "restarts", "study_id"),
    *("energy_per_output_token_j", "energy_per_output_token_low_j", "energy_per_output_token_high_j"),
    *("output_tokens_per_s", "mean_power_w"),
)
MOST_ROWS = 1_000
# Of a text in a row; a result that somebody wrote may hold megabytes.
MOST_CHARACTERS = 300
# Room for every column of a comparison.
COMPARED_COLUMNS = 150


class ServedResults:
    """The results in a folder, for everybody who can reach a page: of the folder's first owner only.

    Args:
        output_dir: The folder, which may be made later.
    """

    def __init__(self, output_dir: Path) -> None:
        self.output_dir = output_dir
        self._owner: int | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Return the latest results, the latest first; none where there is none."""
        with suppress(ConfigError), self._opened() as folder:
            return [
                {name: _short(getattr(row, name)) for name in COLUMNS}
                | {"folder": Path(row.folder).name, "started_utc": f"{row.started_utc:%Y-%m-%d %H:%M}"}
                for row in select(folder)[:MOST_ROWS]
            ]
        return []

    def report(self, name: str) -> str:
        """Return the report of a result or a study as HTML.

        Raises:
            ConfigError: There is none of this name, or it cannot be shown.
        """
        with folders.scratch_folder() as scratch, self._opened() as folder:
            file = scratch / "report.html"
            said = self._ask(folder, ["report", _known(folder, name), "--title", name, "-o", str(file)])
            if not file.is_file():
                raise ConfigError(said.strip())
            return read_regular(file).decode()

    def comparison(self, first: str, second: str) -> str:
        """Return what `wattdock compare` prints of two results or studies.

        Raises:
            ConfigError: There is none of one of the names.
        """
        with self._opened() as folder:
            names = [_known(folder, name) for name in (first, second)]
            return self._ask(folder, ["compare", *names], columns=COMPARED_COLUMNS)

    @contextmanager
    def _opened(self) -> Iterator[Path]:
        """Yield a path by which this process and its children reach the folder, whatever has its path by now.

        Raises:
            ConfigError: There is no such folder, or another user's has its path by now.
        """
        try:
            folder = OwnedFolder.open(self.output_dir)
        except OSError as error:
            raise ConfigError(f"{self.output_dir}: {error.strerror}", "measure something first") from error
        with folder:
            self._owner = folder.owner if self._owner is None else self._owner
            if folder.owner != self._owner:
                raise ConfigError(
                    f"{self.output_dir} belongs to user {folder.owner} by now",
                    "start `serve` anew",
                    cause=Cause.OTHERS_COULD_WRITE,
                )
            yield Path(proc_path(folder.descriptor))

    def _ask(self, folder: Path, words: list[str], *, columns: int = 110) -> str:
        """Return what a command prints of what is in the folder."""
        said = ask(words, columns=columns, pass_fds=(int(folder.name),))
        return said.replace(str(folder), str(self.output_dir))


def _short(value: Any) -> Any:
    return value[:MOST_CHARACTERS] if isinstance(value, str) else value


def _known(folder: Path, name: str) -> str:
    """Return the path of a result or a study by its exact name, which comes from a stranger."""
    for place in (folder, folder / STUDIES):
        with suppress(OSError), OwnedFolder.open(place) as opened:
            if name[:1].isdigit() and name in opened.names():
                return str(place / name)
    raise ConfigError(f"no result and no study is called {name[:200]!r}")
