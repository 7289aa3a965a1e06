"""Ways to spoil valid files, as hypothesis strategies, which shrink to the one change that matters.

Knows formats, and nothing of what wattdock makes of them: a JSON document stays JSON, a table a table, a message a
message, so that what is behind the parser is reached; bytes are spoiled, too.
"""

from __future__ import annotations

import copy
import io
import json
import re
import tarfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from fuzz.messages import MESSAGES, message_stream
from fuzz.values import DEEP, FLOATS, INTEGERS, LONG, NAMES, RAW, RAW_YAML, SCALARS, TEXTS, WORDS
from google.protobuf.message import DecodeError
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Draw = Callable[[st.SearchStrategy[Any]], Any]

# Name of a file → its content.
Files = dict[str, bytes]


def value(draw: Draw, old: Any, raw: dict[str, str]) -> Any:
    """Return what stands in place of an old value: of its type as often as not, else anything."""
    kind = draw(st.integers(0, 7))
    if kind < 4 and isinstance(old, bool | None):
        return draw(st.sampled_from([None, True, False, 0, 1.5]))
    if kind < 4 and isinstance(old, int | float):
        near = [-old, old + 1, old * 2, old * 10**9, 0, 1, -1] if abs(old) < 1e290 else [0]
        return draw(st.sampled_from([*near, *(INTEGERS if isinstance(old, int) else FLOATS)]))
    if kind < 4 and isinstance(old, str):
        return draw(st.sampled_from([old.upper(), old[:-1], old + old, f" {old}", *TEXTS]))
    if kind < 4 and isinstance(old, list) and old:
        return draw(st.sampled_from([old[:-1], old[::-1], old * 2, old[:1] * 10_000, [old], []]))
    if kind == 4:
        return draw(st.sampled_from(sorted(raw)))
    if kind == 5:
        return draw(
            st.sampled_from(
                [[], {}, [None], [[]], [0, 1], {"a": 1}, {"": {}}, [{}] * 1000, {old: 1} if isinstance(old, str) else 0]
            )
        )
    return draw(st.sampled_from(SCALARS))


def tree(draw: Draw, document: Any, raw: dict[str, str] = RAW) -> Any:
    """Return a copy of a document of lists and dicts with one to three changes, at any depth."""
    root = [copy.deepcopy(document)]
    for _ in range(draw(st.integers(1, 3))):
        parent: Any = root
        key: Any = 0
        while isinstance(parent[key], dict | list) and parent[key] and draw(st.integers(0, 7)):
            parent = parent[key]
            key = draw(st.sampled_from(list(parent)) if isinstance(parent, dict) else st.integers(0, len(parent) - 1))
        _change(draw, parent, key, raw)
    return root[0]


def _change(draw: Draw, parent: Any, key: Any, raw: dict[str, str]) -> None:
    how = draw(st.sampled_from(["value", "value", "value", "remove", "swap", "copy", "rename"]))
    others = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    other = draw(st.sampled_from(others))
    if how == "remove" and len(others) > 1:
        del parent[key]
    elif how == "swap":
        parent[key], parent[other] = parent[other], parent[key]
    elif how == "copy":
        parent[key] = copy.deepcopy(parent[other])
    elif how == "rename" and isinstance(parent, dict):
        parent[draw(st.sampled_from(["x", "", "a.b", "\0", key.upper(), key + "s"]))] = parent.pop(key)
    else:
        parent[key] = value(draw, parent[key], raw)


def text_of(document: Any, raw: dict[str, str] = RAW) -> bytes:
    """Return a document as JSON, with raw text in place of its names."""
    text = json.dumps(document, ensure_ascii=False)
    for name, replaced in raw.items():
        if name in text:
            text = text.replace(json.dumps(name, ensure_ascii=False), replaced)
    return text.encode("utf-8", "surrogatepass")


def json_file(draw: Draw, content: bytes) -> bytes:
    """Return a JSON file with another document."""
    return text_of(tree(draw, json.loads(content)))


def json_lines(draw: Draw, content: bytes) -> bytes:
    """Return a file of JSON lines with changed, missing, repeated or reordered lines."""
    lines = content.splitlines(keepends=True) or [b"\n"]
    at = draw(st.integers(0, len(lines) - 1))
    how = draw(st.sampled_from(["change", "change", "change", "drop", "repeat", "reverse", "cut"]))
    if how == "change":
        lines[at] = json_file(draw, lines[at]) + b"\n"
    elif how == "drop":
        del lines[at]
    elif how == "repeat":
        lines[at:at] = [lines[at]] * draw(st.sampled_from([1, 1000]))
    elif how == "reverse":
        lines.reverse()
    else:
        lines[-1] = lines[-1][: draw(st.integers(0, len(lines[-1])))]
    return b"".join(lines)


def yaml_file(draw: Draw, content: bytes) -> bytes:
    """Return a YAML file with another document."""
    if b"*" in content:
        raise ValueError("aliases were put in already, and would be followed here")
    return text_of(tree(draw, yaml.safe_load(content), RAW_YAML), RAW_YAML)


def spoiled(draw: Draw, content: bytes) -> bytes:
    """Return changed bytes: cut, left out, repeated, flipped, or with a number in a place of another."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        # Headers stand at the beginning or the end.
        near = draw(st.sampled_from([64, 512, len(data)]))
        at = draw(st.integers(0, min(near, len(data))))
        at = len(data) - at if draw(st.booleans()) else at
        how = draw(st.sampled_from(["word", "flip", "cut", "remove", "repeat", "insert"]))
        if how == "word":
            word = draw(st.sampled_from(WORDS))
            data[at : at + len(word)] = word
        elif how == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del data[at:]
        elif how == "remove":
            del data[at : at + draw(st.integers(1, 64))]
        elif how == "repeat":
            data[at:at] = data[at : at + 64] * draw(st.sampled_from([1, 1000]))
        else:
            data[at:at] = draw(st.sampled_from([b"\0", b"\xff\xfe", b"\n", b'"', b"[" * DEEP, b"{", b"-", b"0" * 512]))
    return bytes(data)


TYPES = (pa.string(), pa.float64(), pa.float16(), pa.int8(), pa.uint64(), pa.bool_(), pa.binary(), pa.list_(pa.int64()))


def parquet(draw: Draw, content: bytes) -> bytes:
    """Return a Parquet file with other columns, types, values or rows; as large as a small file can become, too."""
    table = pq.ParquetFile(io.BytesIO(content)).read()
    for _ in range(draw(st.integers(1, 2))):
        table = _other_table(draw, table)
    written = io.BytesIO()
    pq.write_table(table, written, compression=draw(st.sampled_from(["zstd", "none", "snappy"])))
    return written.getvalue()


def _other_table(draw: Draw, table: pa.Table) -> pa.Table:
    how = draw(st.sampled_from(["value", "value", "value", "rows", "many", "cast", "drop", "rename", "twice"]))
    at = draw(st.integers(0, table.num_columns - 1))
    name, rows = table.column_names[at], table.num_rows
    try:
        if how == "value" and rows:
            values = table[name].to_pylist()
            new = draw(st.sampled_from([*INTEGERS, *FLOATS, None, "x", "x" * LONG, [1], [2**32 - 1] * 100_000]))
            first = draw(st.integers(0, rows - 1))
            values[first : rows if draw(st.booleans()) else first + 1] = [new]
            values += [new] * (rows - len(values))
            return table.set_column(at, name, pa.array(values, table.schema.field(at).type))
        if how == "rows":
            order = draw(st.sampled_from([[], [0], [*range(rows)][::-1], [*range(rows)] * 2, [*range(1, rows)]]))
            return table.take(order)
        if how == "many" and rows:
            return pa.concat_tables([table.slice(0, 1)] * 1000).combine_chunks().take(pa.array([0] * 3_000_000))
        if how == "cast":
            return table.set_column(at, name, table[name].cast(draw(st.sampled_from(TYPES))))
    except (pa.ArrowException, OverflowError, IndexError, TypeError, ValueError):
        return table.slice(0, rows - 1)
    if how == "drop" and table.num_columns > 1:
        return table.drop_columns(name)
    if how == "rename":
        return table.rename_columns([*table.column_names[:at], "x", *table.column_names[at + 1 :]])
    return table.append_column(name, table[name])


def tar(draw: Draw, content: bytes) -> bytes:
    """Return a tar file with other members: names, kinds, sizes that lie, twice, or none."""
    with tarfile.open(fileobj=io.BytesIO(content)) as file:
        members = [(member, (file.extractfile(member) or io.BytesIO()).read()) for member in file.getmembers()]
    form = draw(st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(members) - 1))
        member, data = members[at]
        member = copy.copy(member)
        how = draw(st.sampled_from(["name", "type", "size", "content", "drop", "twice", "pax", "link"]))
        if how == "name":
            member.name = draw(st.sampled_from(NAMES))
        elif how == "type":
            member.type = bytes([draw(st.integers(0, 127))])
        elif how == "size":
            member.size = draw(st.sampled_from([0, 1, len(data) * 2, 2**33 - 1, 2**33, 2**62, -1]))
        elif how == "content":
            data = data * 2 if draw(st.booleans()) else spoiled(draw, data)
            member.size = len(data)
        elif how == "pax":
            keys = ["size", "path", "mtime", "GNU.sparse.map", "GNU.sparse.size", "uid", "hdrcharset", "linkpath"]
            member.pax_headers = {draw(st.sampled_from(keys)): draw(st.sampled_from(["9" * 30, "-1", "x", "0,1" * 99]))}
        elif how == "link":
            member.type = draw(st.sampled_from([tarfile.SYMTYPE, tarfile.LNKTYPE]))
            member.linkname = draw(st.sampled_from([*NAMES, member.name]))
        members[at : at + (how != "twice")] = [] if how == "drop" and len(members) > 1 else [(member, data)]
    return packed(members, form)


def packed(members: Sequence[tuple[tarfile.TarInfo, bytes]], form: Any = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar file of these members, whatever their headers say."""
    parts = []
    for member, data in members:
        try:
            parts += [member.tobuf(form, errors="surrogateescape"), data, bytes(-len(data) % 512)]
        except ValueError:
            parts.append(data)
    return b"".join([*parts, bytes(1024)])


def safetensors(draw: Draw, content: bytes) -> bytes:
    """Return a safetensors file with another header."""
    size = int.from_bytes(content[:8], "little")
    header = text_of(tree(draw, json.loads(content[8 : 8 + size])))
    said = draw(st.sampled_from([len(header), len(header), len(header), 0, 2**31, 2**63, 2**64 - 1]))
    written: bytes = said.to_bytes(8, "little") + header + content[8 + size :]
    return written


def gguf(draw: Draw, content: bytes) -> bytes:
    """Return a GGUF file with another type, length or value behind the name of a field or tensor."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        names = [at.end() for at in re.finditer(rb"[a-z]+\.[a-z_.]+", content)] or [0]
        at = draw(st.sampled_from(names)) + draw(st.sampled_from([-8, 0, 4, 8, 12, 16]))
        word = draw(st.sampled_from(WORDS))
        data[at : at + len(word)] = word
    return bytes(data)


# A file that was changed before may be none of its form any more.
SPOILED = (
    *(ValueError, LookupError, OSError, ArithmeticError, TypeError, AttributeError, RecursionError, MemoryError),
    *(yaml.YAMLError, pa.ArrowException, tarfile.TarError, DecodeError),
)
BY_SUFFIX = {
    "json": json_file,
    "jsonl": json_lines,
    "yaml": yaml_file,
    "parquet": parquet,
    "tar": tar,
    "safetensors": safetensors,
    "gguf": gguf,
}


@st.composite
def files(draw: Draw, seeds: Sequence[Files], changes: Sequence[str] = ()) -> Files:
    """Return the files of a seed with changes in one or two of them, or one missing, empty or exchanged.

    Args:
        changes: Names of the files that are changed, one that stands here twice twice as often; all unless given.
    """
    changed = dict(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        names = [name for name in changes or sorted(changed) if name in changed]
        if not names:
            break
        name = draw(st.sampled_from(names))
        how = draw(st.sampled_from(["form"] * 12 + ["bytes"] * 4 + ["missing", "empty", "exchanged"]))
        if how == "missing":
            del changed[name]
        elif how == "empty":
            changed[name] = b""
        elif how == "exchanged":
            changed[name] = changed[draw(st.sampled_from(sorted(changed)))]
        else:
            changed[name] = _changed_file(draw, name, changed[name], by_form=how == "form")
    return changed


def _changed_file(draw: Draw, name: str, content: bytes, *, by_form: bool) -> bytes:
    stem, _, suffix = name.rpartition("/")[2].partition(".")
    if by_form:
        try:
            if suffix == "pbs":
                return message_stream(draw, content, MESSAGES[stem])
            if suffix in BY_SUFFIX:
                return BY_SUFFIX[suffix](draw, content)
        except SPOILED:
            pass
    return spoiled(draw, content)
