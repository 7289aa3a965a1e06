"""Stored results for a page: a row each, and the report of a result or of its study."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from wattdock.errors import Cause, ConfigError
from wattdock.files import STUDIES
from wattdock.host import folders
from wattdock.live.order import output_of
from wattdock.opening import proc_path, read_regular
from wattdock.owned_folder import OwnedFolder
from wattdock.store import Row, select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wattdock.live.feed import Feed

MOST_ROWS = 1_000
# Longest text in a row; a result that somebody wrote may hold megabytes.
MOST_CHARACTERS = 300
# Most requests of other users that wait for results to be read.
MOST_WAITING = 2
# The pause before the rows are read again, as a multiple of how long the last reading took.
REST = 9


class ServedResults:
    """The results in a folder, of the folder's first owner only, read one request after the other."""

    def __init__(self, feed: Feed) -> None:
        self._feed, self._output_dir = feed, feed.output_dir
        self._turn, self._waiting = asyncio.Lock(), 0
        self._owner: int | None = None
        self._named, self._read_utc = set[str](), datetime.now(UTC)
        self._rows, self._rest_until_s = self._read_rows(), 0.0

    async def rows(self, *, for_owner: bool) -> dict[str, Any]:
        """Return the latest rows; the earlier ones while a pass is measured, or where reading takes long."""
        if study := self._feed.measuring:
            newer = len(self._names() - self._named)
            note = f"as of {self._read_utc:%H:%M:%S} UTC, {newer} more stored since; read again after {study}'s pass"
            return {"rows": self._rows, "note": note}
        if time.monotonic() >= self._rest_until_s:
            began_s = time.monotonic()
            self._rows = await self._in_turn(self._read_rows, for_owner=for_owner)
            self._rest_until_s = time.monotonic() + REST * (time.monotonic() - began_s)
        return {"rows": self._rows, "note": ""}

    async def report(self, name: str, *, for_owner: bool) -> str:
        """Return the report of a result or a study as HTML.

        Raises:
            ConfigError: There is none of this name, or it cannot be shown.
        """

        def read() -> str:
            with folders.scratch_folder() as scratch, self._opened() as folder:
                file = scratch / "report.html"
                words = ["report", _path_of(folder, name), "--title", name, "-o", str(file)]
                said = output_of(words, pass_fds=(int(folder.name),))
                if not file.is_file():
                    raise ConfigError(said.replace(str(folder), str(self._output_dir)).strip())
                return read_regular(file).decode()

        page: str = await self._in_turn(read, for_owner=for_owner)
        return page

    async def _in_turn(self, read: Callable[[], Any], *, for_owner: bool) -> Any:
        """Read on another thread, and not while a pass is measured; others' requests leave room for the owner's."""
        if self._waiting >= MOST_WAITING and not for_owner:
            raise HTTPException(503, "others are waiting for results already; try again")
        self._waiting += 1
        try:
            async with self._turn:
                self._feed.require_no_pass()
                return await asyncio.to_thread(read)
        finally:
            self._waiting -= 1

    def _read_rows(self) -> list[dict[str, Any]]:
        columns, rows = Row.columns("live"), []
        self._named, self._read_utc = self._names(), datetime.now(UTC)
        with suppress(ConfigError), self._opened() as folder:
            for row in select(folder)[:MOST_ROWS]:
                values = {name: getattr(row, name) for name in columns}
                short = {name: text[:MOST_CHARACTERS] for name, text in values.items() if isinstance(text, str)}
                place = {"folder": Path(row.folder).name, "started_utc": f"{row.started_utc:%Y-%m-%d %H:%M}"}
                rows.append(values | short | place | {"disturbed": bool(row.disturbed)})
        return rows

    def _names(self) -> set[str]:
        """Return the names of the stored results; it reads none of them."""
        with suppress(OSError), OwnedFolder.open(self._output_dir) as folder:
            return {name for name in folder.names() if name[:1].isdigit()}
        return set()

    @contextmanager
    def _opened(self) -> Iterator[Path]:
        """Yield a path by which this process and its children reach the folder, even if its path is replaced.

        Raises:
            ConfigError: There is no such folder, or another user's folder has replaced it.
        """
        try:
            folder = OwnedFolder.open(self._output_dir)
        except OSError as error:
            raise ConfigError(f"{self._output_dir}: {error.strerror}", "measure something first") from error
        with folder:
            self._owner = folder.owner if self._owner is None else self._owner
            if folder.owner != self._owner:
                raise ConfigError(
                    f"{self._output_dir} belongs to user {folder.owner} by now",
                    "start `serve` anew",
                    cause=Cause.OTHERS_COULD_WRITE,
                )
            yield Path(proc_path(folder.descriptor))


def _path_of(folder: Path, name: str) -> str:
    """Return the path of a result or a study by its exact name, which comes from a stranger."""
    for place in (folder, folder / STUDIES):
        with suppress(OSError), OwnedFolder.open(place) as opened:
            if name[:1].isdigit() and name in opened.names():
                return str(place / name)
    raise ConfigError(f"no result and no study is called {name[:200]!r}")
