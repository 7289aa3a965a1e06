"""A bundle's files in one tar file, every byte of which follows from its files' content.

Read by hand, not by `tarfile`, which is lenient: it takes a damaged header for the end, and knows links and devices.
Here anything but what `write_tar` writes is an error, so that one changed byte anywhere is found.
"""

from __future__ import annotations

import tarfile
from typing import IO, TYPE_CHECKING

from wattdock.errors import StoreError
from wattdock.publish.manifest import is_safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

BLOCK, RECORD, PIECE = tarfile.BLOCKSIZE, tarfile.RECORDSIZE, 1 << 20
END = bytes(BLOCK)
KINDS = {tarfile.SYMTYPE: "a symbolic link", tarfile.LNKTYPE: "a hard link", tarfile.DIRTYPE: "a folder"}
AGAIN = "get it again from its source"
REPACKED = "if you packed it anew, unpack it and name the folder instead"


class Member:
    """One file of a tar file, to be read to its end before the next.

    Attributes:
        name: With the bundle's folder in front.
    """

    def __init__(self, name: str, size_bytes: int, file: IO[bytes]) -> None:
        self.name = name
        self._left_bytes, self._file = size_bytes, file

    def pieces(self) -> Iterator[bytes]:
        """Yield the content, at most a megabyte at once.

        Raises:
            StoreError: The tar file ends before.
        """
        while self._left_bytes:
            piece = self._file.read(min(PIECE, self._left_bytes))
            if not piece:
                raise StoreError(f"is cut short in {self.name}; {AGAIN}")
            self._left_bytes -= len(piece)
            yield piece


def write_tar(folder: Path, names: Sequence[str], file: IO[bytes], *, top: str, at_s: int) -> None:
    """Write the files `names` of `folder` as a tar file (POSIX ustar) in which they lie in the folder `top`.

    Args:
        at_s: Unix time that all files get, seconds.
    """
    written = 0
    for name in names:
        size = (folder / name).stat().st_size
        file.write(_header(f"{top}/{name}", size, at_s))
        with (folder / name).open("rb") as content:
            while piece := content.read(PIECE):
                file.write(piece)
        file.write(bytes(-size % BLOCK))
        written += BLOCK + size + -size % BLOCK
    file.write(bytes(2 * BLOCK + -(written + 2 * BLOCK) % RECORD))


def members(file: IO[bytes]) -> Iterator[Member]:
    """Yield every file of a tar file that `write_tar` wrote.

    Raises:
        StoreError: It is cut short, damaged, of another make, or holds what could lead out of its folder.
    """
    seen: set[str] = set()
    at_s: int | None = None
    while (block := _read(file, BLOCK, "where a file begins")) != END:
        info = _info(block)
        at_s = int(info.mtime) if at_s is None else at_s
        if block != _header(info.name, info.size, at_s):
            raise StoreError(f"the frame of {info.name!r} is not as wattdock wrote it; {AGAIN}; {REPACKED}")
        if info.name.casefold() in seen:
            raise StoreError(f"holds {info.name!r} twice; do not unpack it")
        seen.add(info.name.casefold())
        member = Member(info.name, info.size, file)
        yield member
        for _ in member.pieces():
            pass
        padding = _read(file, -info.size % BLOCK, f"after {info.name}")
        if padding.strip(b"\0"):
            raise StoreError(f"the padding after {info.name!r} was changed; {AGAIN}")
    _require_end(file)


def _info(block: bytes) -> tarfile.TarInfo:
    try:
        info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        raise StoreError(f"is damaged where a file begins ({error}), or is no tar file; {AGAIN}") from error
    if not info.isreg():
        kind = KINDS.get(info.type, "neither file nor folder")
        raise StoreError(f"holds {info.name!r}, {kind}: no bundle has one; do not unpack it; {REPACKED}")
    if not is_safe(info.name):
        raise StoreError(f"holds {info.name!r}, which would be written outside its folder or hidden; do not unpack it")
    return info


def _header(name: str, size_bytes: int, at_s: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size_bytes, at_s, 0o644
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    except ValueError as error:
        raise StoreError(f"{name}: {error}: a tar file cannot hold it; bundle a folder instead") from error


def _read(file: IO[bytes], count: int, where: str) -> bytes:
    content = file.read(count)
    if len(content) < count:
        raise StoreError(f"is cut short {where}; {AGAIN}")
    return content


def _require_end(file: IO[bytes]) -> None:
    """One zero block was read; the rest of the last record must be zero, and nothing may follow."""
    left = -file.tell() % RECORD or RECORD
    rest = file.read(left + 1)
    if len(rest) != left or rest.strip(b"\0"):
        raise StoreError(f"does not end as a bundle does; {AGAIN}")
