"""Ways to spoil a runner's messages: they stay messages, and say what no runner should."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuzz.values import FLOATS, INTEGERS, LONG, RAW, TEXTS
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.message import Message

    Draw = Callable[[st.SearchStrategy[Any]], Any]

# Of a file's name → what its messages are.
MESSAGES: dict[str, type[Message]] = {
    "describe": pb.DescribeResponse,
    "load": pb.LoadEvent,
    "generate": pb.GenerateEvent,
    "diagnose": pb.DiagnoseResponse,
}


def delimited(messages: Sequence[Message]) -> bytes:
    """Return messages one after another, each behind its length."""
    parts = [message.SerializeToString() for message in messages]
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def parted(content: bytes) -> list[bytes]:
    """Return what `delimited` put together; a message that was spoiled is as it is."""
    parts, at = [], 0
    while at + 4 <= len(content):
        size = int.from_bytes(content[at : at + 4], "little")
        parts.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return parts


def message_stream(draw: Draw, content: bytes, kind: type[Message]) -> bytes:
    """Return a stream with changed, missing, repeated or reordered messages."""
    stream = [kind.FromString(part) for part in parted(content)] or [kind()]
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(stream) - 1))
        how = draw(st.sampled_from(["field", "field", "field", "field", "drop", "twice", "swap", "empty"]))
        if how == "field":
            _field(draw, stream[at])
        elif how == "swap":
            stream.insert(draw(st.integers(0, len(stream))), stream.pop(at))
        elif how == "empty":
            stream[at] = kind()
        else:
            stream[at : at + 1] = [stream[at]] * 2 if how == "twice" or len(stream) == 1 else []
    return delimited(stream)


def _field(draw: Draw, message: Any) -> None:  # noqa: C901
    """Change one field of a message or, as often as not, of a message within."""
    while True:
        field = draw(st.sampled_from(list(message.DESCRIPTOR.fields)))
        inner = getattr(message, field.name)
        if field.type != FieldDescriptor.TYPE_MESSAGE or not draw(st.integers(0, 3)):
            break
        if field.is_repeated and not len(inner):
            break
        # A map of texts has no messages within.
        if field.message_type.GetOptions().map_entry:
            inner["x"] = draw(st.sampled_from(["", "x" * LONG]))
            return
        message = inner[draw(st.integers(0, len(inner) - 1))] if field.is_repeated else inner
        if not message.DESCRIPTOR.fields:
            return
    how = draw(st.integers(0, 3))
    if how == 0:
        message.ClearField(field.name)
    elif field.is_repeated and how == 1 and len(inner) and field.type != FieldDescriptor.TYPE_MESSAGE:
        inner.extend(list(inner) * draw(st.sampled_from([1, 100])))
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        if field.is_repeated and not field.message_type.GetOptions().map_entry:
            for _ in range(draw(st.sampled_from([1, 100_000]))):
                inner.add()
        elif not field.is_repeated:
            inner.SetInParent()
    elif field.is_repeated:
        inner.append(_scalar(draw, field))
        if len(inner) > 1 and draw(st.booleans()):
            inner[0], inner[-1] = inner[-1], inner[0]
    else:
        setattr(message, field.name, _scalar(draw, field))


def _scalar(draw: Draw, field: FieldDescriptor) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        raw = [text.replace("\ud800", "") for text in TEXTS]
        return draw(st.sampled_from([*raw, *RAW.values(), '{"a": NaN}', "[]", "1", "GPU-1", "x" * (LONG - 100_000)]))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return draw(st.booleans())
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return draw(st.sampled_from(FLOATS))
    bits = 64 if kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64) else 32
    signed = kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_ENUM)
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    return draw(st.sampled_from([number for number in (*INTEGERS, low, high - 1) if low <= number < high]))
