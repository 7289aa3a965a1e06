"""The tar file of a bundle: its bytes follow from the files in it, and no other bytes are read as one.

A bundle may come from anybody: whatever `pack` would not have written ends the reading.
Must not know: what the files mean.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from wattdock.errors import Cause, StoreError
from wattdock.opening import open_data
from wattdock.owned_folder import OwnedFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Content = Path | OwnedFile | bytes
# A name that is not hidden and does not lead out of its folder, on any system.
SAFE_PART = re.compile(r"\w[\w.+-]*")
# The longest name, top folder included: a path may be no longer than 4096 bytes, and its folders cost by their number.
MOST_NAME_BYTES = 1_000
# 1980-01-01 UTC: GNU tar calls files of 1970 implausibly old.
MTIME_S = 315_532_800
# The most bytes that are read at once, and the largest extended header: a name has at most a quarter of it.
PIECE_BYTES, MOST_HEADER_BYTES = 1 << 20, 4_096
AGAIN = "get it again from its source"
REPACKED = "if you packed it anew yourself, name its folder instead"
DAMAGED = ("is not a tar file, or is damaged or cut short", AGAIN)
OTHERWISE = ("is not as wattdock wrote it", f"{AGAIN}; {REPACKED}")


def is_safe(name: str) -> bool:
    """Whether a file's name, parts joined by "/", stays inside the bundle on every system."""
    return all(map(SAFE_PART.fullmatch, name.split("/"))) and len(name.encode()) <= MOST_NAME_BYTES


def sha256_of(content: Content) -> str:
    """Return the hash of a file, or of what will be one, in hexadecimal digits."""
    with opened(content) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pack(files: Mapping[str, Content], file: IO[bytes], *, top: str) -> None:
    """Write `files`, by name, as a tar file in which they lie in the folder `top`; equal files give equal bytes."""
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            with opened(files[name]) as content:
                size_bytes = content.seek(0, os.SEEK_END)
                content.seek(0)
                tar.addfile(_header(f"{top}/{name}", size_bytes), content)


def unpack(tar: IO[bytes]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield each file of a tar file that `pack` wrote: its name, the top folder's in front, and its content in pieces.

    The pieces are to be taken before the next file.

    Raises:
        StoreError: A byte is not as `pack` would have written it; says what is wrong.
    """
    names: set[str] = set()
    previous = ""
    while header := _next_header(tar):
        name, size_bytes = header.name, header.size
        top = previous.partition("/")[0] or name.partition("/")[0]
        folders = {str(folder) for folder in PurePosixPath(name).parents}
        if name <= previous or top not in folders or folders & names:
            raise StoreError(*OTHERWISE, cause=Cause.DAMAGED)
        yield name, _pieces(tar, size_bytes)
        names.add(name)
        previous = name
    end, padded = tar.tell() + 2 * tarfile.BLOCKSIZE, tar.read(tarfile.RECORDSIZE + tarfile.BLOCKSIZE)
    if any(padded) or tar.tell() != -(-end // tarfile.RECORDSIZE) * tarfile.RECORDSIZE:
        raise StoreError(*OTHERWISE, cause=Cause.DAMAGED)


def opened(content: Content) -> io.BytesIO | io.BufferedReader:
    """Return a file of a bundle to read from.

    Raises:
        OSError: It cannot be opened.
    """
    if isinstance(content, bytes):
        return io.BytesIO(content)
    return content.open() if isinstance(content, OwnedFile) else open_data(content)


def _header(name: str, size_bytes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mtime, info.size = MTIME_S, size_bytes
    return info


def _next_header(tar: IO[bytes]) -> tarfile.TarInfo | None:
    """Return the header of the next file, which is as `pack` writes it; None at the end."""
    start = tar.tell()
    if not any(block := tar.read(tarfile.BLOCKSIZE)):
        tar.seek(start)
        return None
    try:
        info, extended = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape"), {}
        if info.type == tarfile.XHDTYPE and info.size <= MOST_HEADER_BYTES:
            # A long name or a large size. Source: POSIX pax, extended header: lines of "<length> <keyword>=<value>".
            lines = tar.read(-(-info.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)[: info.size].decode().splitlines()
            extended = {key: value for key, _, value in (line.partition(" ")[2].partition("=") for line in lines)}
            info = tarfile.TarInfo.frombuf(tar.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
        name, size_bytes = extended.get("path", info.name), int(extended.get("size", info.size))
    except (tarfile.TarError, ValueError) as error:
        raise StoreError(*DAMAGED, cause=Cause.DAMAGED) from error
    if info.type != tarfile.REGTYPE or not is_safe(name):
        raise StoreError(
            f"holds {name[:100]!r}, which is not a plain file, is hidden or too long, or lies outside its folder: "
            "wattdock packs no such file; do not unpack it",
            REPACKED,
        )
    if size_bytes < 0:
        raise StoreError(*DAMAGED, cause=Cause.DAMAGED)
    header = _header(name, size_bytes)
    written = header.tobuf(tarfile.PAX_FORMAT)
    tar.seek(start)
    if tar.read(len(written)) != written:
        raise StoreError(*OTHERWISE, cause=Cause.DAMAGED)
    return header


def _pieces(tar: IO[bytes], size_bytes: int) -> Iterator[bytes]:
    left_bytes = size_bytes
    while left_bytes:
        if not (piece := tar.read(min(left_bytes, PIECE_BYTES))):
            raise StoreError(*DAMAGED, cause=Cause.DAMAGED)
        left_bytes -= len(piece)
        yield piece
    if any(tar.read(-size_bytes % tarfile.BLOCKSIZE)):
        raise StoreError(*OTHERWISE, cause=Cause.DAMAGED)
