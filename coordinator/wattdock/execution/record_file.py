"""What one runner measured of one experiment, as one file that reads back to the last bit.

JSON for values and raw arrays beside it in one `.npz`; nothing in it is ever executed. Written whole or not at all.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import io
import json
import types
import typing
import zlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from wattdock import clock
from wattdock.errors import StoreError
from wattdock.files import write_whole
from wattdock.inputs import ModelFolder  # noqa: TC001  (read at run time, see `_hints`)
from wattdock.metering import timeline
from wattdock.records import (
    RestartRecord,
    environment,
    failure,
)
from wattdock.records import restart as records

# What the dataclasses' modules import for type checkers only.
NAMES = {
    **vars(failure),
    **vars(environment),
    **vars(timeline),
    **vars(clock),
    **vars(records),
    "Mapping": collections.abc.Mapping,
    "NDArray": NDArray,
    "np": np,
    "Path": Path,
}
DOCUMENT = "document"
# As JSON has them.
PLAIN = (bool, int, float, str, Any)


@dataclass(frozen=True)
class Served:
    """One runner's service to one experiment.

    Attributes:
        experiment_id: Whose it is.
        started_utc: When it began; a label.
        model: As resolved; None where that failed.
        record: What was measured; its failure is why it ended early.
    """

    experiment_id: str
    started_utc: datetime
    model: ModelFolder | None
    record: RestartRecord


def write_served(served: Served, path: Path) -> None:
    """Write `served` to `path`, replacing what stands there; durable when this returns.

    Raises:
        OSError: There is no room, or no permission; what stood there still stands.
    """
    arrays: list[NDArray[Any]] = []
    document = json.dumps(_encode(served, arrays)).encode()
    content = io.BytesIO()
    named: dict[str, Any] = {f"a{number}": array for number, array in enumerate(arrays)}
    named[DOCUMENT] = np.frombuffer(document, dtype=np.uint8)
    np.savez_compressed(content, **named)
    write_whole(path, content.getvalue())


def read_served(path: Path) -> Served:
    """Return what `write_served` wrote to `path`.

    Raises:
        StoreError: It cannot be read, or was written by another version.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
        served: Served = _decode(Served, json.loads(arrays[DOCUMENT].tobytes()), arrays)
        return served
    except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile, zlib.error) as error:
        raise StoreError(
            f"{path}: cannot be read ({error}); another version's? Remove it to measure its passes again"
        ) from error


def _encode(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return f"a{len(arrays) - 1}"
    if dataclasses.is_dataclass(value):
        return {one.name: _encode(getattr(value, one.name), arrays) for one in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, collections.abc.Mapping):
        return {key: _encode(one, arrays) for key, one in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [_encode(one, arrays) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Path) else value


def _decode(kind: Any, data: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return `data` as a value of the type `kind`, which is one of those that records are made of."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if data is None else _decode(next(one for one in parts if one is not types.NoneType), data, arrays)
    # numpy's alias is a class of its own from 2.5 on, under Python 3.12 and newer.
    if origin in (np.ndarray, NDArray):
        return arrays[data]
    if origin is frozenset:
        return frozenset(data)
    if origin is tuple:
        return tuple(data) if parts[0] is int else tuple(_decode(parts[0], one, arrays) for one in data)
    if origin is collections.abc.Mapping:
        return {key: _decode(parts[1], one, arrays) for key, one in data.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{name: _decode(hints[name], one, arrays) for name, one in data.items()})
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.model_validate(data)
    if kind is datetime:
        return datetime.fromisoformat(data)
    if kind is Path:
        return Path(data)
    if origin is not typing.Literal and kind not in PLAIN:
        raise TypeError(f"nothing here reads a {kind}")
    return data


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, localns=NAMES)
