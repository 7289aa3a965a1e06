"""Where prompts come from: the bundled set, a file of text, ids or lengths, or a distribution of lengths.

Tokenises nothing and draws no ids.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from array import array
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, ConfigError
from wattdock.inputs.prompts import formats
from wattdock.inputs.prompts.formats import UNIT_NS, Written, recognised, short
from wattdock.opening import read_regular
from wattdock.text import pluralize, strict_json_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from wattdock.config import ExperimentConfig
    from wattdock.inputs.prompts.formats import Format, Item, Layout

BUNDLED = "bundled"
# Of a record; a prompt of a million tokens has five, and JSON takes up to thirty times its size while it is read.
MOST_CHARACTERS = 16_000_000
# Characters that a record is looked for in, before sixteen times as many.
FEWEST_CHARACTERS = 16_384
SPACE = re.compile(r"\s*+")
NUMBER = re.compile(r"-?\d{1,25}(\.\d{1,25})?([eE][+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True)
class Reading:
    """What an experiment needs of a file.

    Attributes:
        vocab_size: Token ids are below it; None where that is unknown.
        replays: Instants are used.
        time_unit: Of instants that are numbers, as the settings say; None is the format's own.
        shares_prefixes: The engine's prefix cache is on, so that ids of blocks matter.
        chat: Text is wrapped in the model's chat template.
        temperature, top_p: Of sampling.
    """

    vocab_size: int | None
    replays: bool = False
    time_unit: str | None = None
    shares_prefixes: bool = False
    chat: bool = True
    temperature: float = 0.0
    top_p: float = 1.0

    @classmethod
    def of(cls, config: ExperimentConfig, vocab_size: int | None) -> Reading:
        """Return what an experiment needs of its prompts file."""
        work, caching = config.workload, config.section.caches_prefixes
        replays, top_p = work.arrival == "trace", 1.0 if work.top_p is None else work.top_p
        return cls(vocab_size, replays, work.trace_time_unit, caching, work.prompts.chat, work.temperature, top_p)

    def unused(self, keys: Iterable[str], layout: Layout) -> set[str]:
        """Return which of a record's keys do not change the work."""
        used = {layout.prompt, layout.limit, *layout.settings}
        used |= {layout.instant} if self.replays else set()
        return {*keys} - used - ({layout.blocks} if self.shares_prefixes else set())


@dataclass(frozen=True)
class Source:
    """What a source holds, in order.

    Attributes:
        items: Text, a chat, token ids, or the number of ids that are still to be drawn.
        max_output_tokens: Per item its own limit, or None for the workload's; as long as `items`.
        sha256: Of the whole source: the file's bytes, or how synthetic ids are drawn.
        name: "bundled", "synthetic-<length>", or the file's name.
        arrivals_s: When each came, from any epoch; empty where some record has no instant, or its unit is unknown.
        blocks: Per item, the ids of its blocks of tokens; empty where no prefix cache would use them.
        block_tokens: Tokens of a block.
        format: Name of the file's format; None for a source that is no file.
        ignored: Of the file: keys, and records, that do not change the work.
    """

    items: tuple[Item | int, ...]
    max_output_tokens: tuple[int | None, ...]
    sha256: str
    name: str
    arrivals_s: tuple[float, ...] = ()
    blocks: tuple[array[int], ...] = ()
    block_tokens: int = 0
    format: str | None = None
    ignored: tuple[str, ...] = ()

    @cached_property
    def rows(self) -> list[tuple[int, int]]:
        """Tokens of prompt and answer, where lengths are all that is known of a request."""
        pairs = zip(self.items, self.max_output_tokens, strict=True)
        return [(prompt, answer) for prompt, answer in pairs if isinstance(prompt, int) and answer]

    @cached_property
    def repeated_share(self) -> float | None:
        """The share of prompts that an earlier one equals in content; None for lengths, whose ids are drawn anew."""
        if self.rows:
            return None
        different = {bytes(item) if isinstance(item, array) else item for item in self.items}
        return 1 - len(different) / len(self.items)


def read_source(config: ExperimentConfig, vocab_size: int | None) -> Source:
    """Return the bundled set or a file, checked record by record.

    Raises:
        ConfigError: It cannot be read or used; the message names file and line.
    """
    source, path = config.prompts.source or BUNDLED, config.prompts.file
    if path is None:
        return _parsed((files("wattdock.inputs") / "prompts.jsonl").read_bytes(), source, BUNDLED, Reading(vocab_size))
    try:
        content = read_regular(path, follow=True)
    except OSError as error:
        raise ConfigError(
            f"cannot read prompts from {source!r} ({error.strerror})", "give bundled, synthetic or a JSONL or CSV file"
        ) from error
    return _parsed(content, source, path.name, Reading.of(config, vocab_size))


# Traces may have millions of lines, and each pass reads its part.
@lru_cache(maxsize=1)
def _parsed(content: bytes, source: str, name: str, reading: Reading) -> Source:
    """Read a file whose first record tells its format; every further one is held to it."""
    text = _text(content, source)
    first = text[SPACE.match(text).end() :][:1]  # type: ignore[union-attr]
    # By content: a bundle keeps files under names of its own.
    records = {"{": _json_records, "": _json_records, "[": _array_records}.get(first, _csv_records)
    parser = _Parser(reading)
    for number, record in records(text, source):
        parser.take(record, f"{source}:{number}")
    return parser.source(hashlib.sha256(content).hexdigest(), source, name)


class _Parser:
    """Takes records one after another and holds what they say."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.form: Format | None = None
        self.layouts: dict[tuple[str, ...], Layout] = {}
        self.items, self.limits = list["Item | int"](), list[int | None]()
        self.instants_ns, self.written = list[int](), dict[Written, str]()
        self.blocks = list["array[int]"]()
        self.skipped = 0

    def take(self, record: Mapping[str, Any], where: str) -> None:
        """Add one record."""
        self.form = form = self.form or recognised(record, where)
        keys, reading = tuple(record), self.reading
        if (layout := self.layouts.get(keys)) is None:
            layout = self.layouts[keys] = form.layout(keys, where)
        reader = form.prompts[layout.prompt]
        if reader is formats.messages and not reading.chat:
            raise ConfigError(f"{where}: messages need the model's chat template, and workload.prompts.chat is false")
        for key in layout.settings:
            setting = key.removeprefix("body.")
            if record[key] != (ours := getattr(reading, setting)):
                raise ConfigError(
                    f"{where}: {key} is {short(record[key])}, and workload.{setting} is {ours}", "make them agree"
                )
        item = reader(record[layout.prompt], where, layout.prompt)
        if item is None:
            self.skipped += 1
            return
        if isinstance(item, array) and reading.vocab_size is not None and max(item) >= reading.vocab_size:
            raise ConfigError(
                f"{where}: token id {max(item)} is not below the model's vocabulary size {reading.vocab_size}"
            )
        self.items.append(item)
        limit = record[layout.limit] if layout.limit else None
        lacks = limit is None and layout.limit not in form.needed
        self.limits.append(None if lacks else formats.tokens(limit, where, layout.limit or ""))
        if layout.instant:
            self._take_instant(record[layout.instant], where, layout.instant, form)
        if layout.blocks and reading.shares_prefixes:
            ids = formats.blocks(record[layout.blocks], where, layout.blocks, tokens=item, each=form.block_tokens)
            self.blocks.append(ids)

    def _take_instant(self, value: object, where: str, key: str, form: Format) -> None:
        given = self.reading.time_unit
        at_ns, written = formats.instant(value, where, key, given or form.unit or "s")
        self.written.setdefault(written, where)
        if len(self.written) > 1:
            raise ConfigError(f"{where}: {key} is {written.value}, and {next(iter(self.written)).value} before")
        if self.instants_ns and at_ns < self.instants_ns[-1]:
            raise ConfigError(f"{where}: comes before the line above", "sort the file by time")
        self.instants_ns.append(at_ns)
        # Mooncake's milliseconds are whole; fractions are another tool's seconds under the same key.
        known = form.unit and (form.unit != "ms" or formats.is_int(value))
        if self.reading.replays and not (known or given or written is not Written.NUMBER):
            units = " | ".join(UNIT_NS)
            raise ConfigError(
                f"{where}: {key} is {short(value)}, in no known unit", f"set workload.trace_time_unit: {units}"
            )
        if given and (known or written is not Written.NUMBER):
            unit = f"always in {form.unit}" if written is Written.NUMBER else written.value
            raise ConfigError(f"{where}: {key} of {form.name} is {unit}", "leave out workload.trace_time_unit")

    def source(self, sha256: str, source: str, name: str) -> Source:
        """Return what was taken."""
        form, reading, instants_ns = self.form, self.reading, self.instants_ns
        if self.skipped and not self.items:
            what = f"{source}: no conversation begins with a user's turn, and no other can be sent"
            raise ConfigError(what, cause=Cause.EMPTY)
        if not self.items or not form:
            raise ConfigError(f"{source} holds no prompts", 'write one {"prompt": "..."} per line', cause=Cause.EMPTY)
        known = reading.time_unit or form.unit or Written.NUMBER not in self.written
        dated = known and len(instants_ns) == len(self.items)
        ignored = {key for keys, layout in self.layouts.items() for key in reading.unused(keys, layout)}
        notes = ["all turns but the first"] if form.name == "ShareGPT" else []
        if self.skipped:
            notes.append(f"{pluralize(self.skipped, 'conversation')} without a user's turn first")
        return Source(
            *(tuple(self.items), tuple(self.limits), sha256, name),
            arrivals_s=tuple((at_ns - instants_ns[0]) / NS_PER_S for at_ns in instants_ns) if dated else (),
            blocks=tuple(self.blocks),
            block_tokens=form.block_tokens,
            format=form.name,
            ignored=(*sorted(ignored), *notes),
        )


def _text(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{source}:{line}: byte 0x{content[error.start]:02x} is not UTF-8", "save the file as UTF-8"
        ) from error


def _json_records(text: str, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the object in each line with the line's number; blank lines are none."""
    # Not splitlines: JSON strings may hold U+2028 and its like.
    for number, line in enumerate(_lines(text), start=1):
        if stripped := line.strip():
            record, end = _value_at(stripped, 0, f"{source}:{number}")
            if end < len(stripped):
                raise ConfigError(f"{source}:{number}: not JSON (more than one value): {short(stripped)}")
            yield number, _object(record, f"{source}:{number}")


def _lines(text: str) -> Iterator[str]:
    """Yield the lines one after another: a list of a gigabyte of line feeds would have eight."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def _array_records(text: str, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each object of an array with the number of the line that it begins in."""
    space = re.compile(r"[ \t\r\n]*")

    def next_at(start: int) -> int:
        match = space.match(text, start)
        return match.end() if match else start

    at, line, counted = next_at(next_at(0) + 1), 1, 0
    separator = ","
    if text[at : at + 1] == "]":
        separator, at = "]", next_at(at + 1)
    while separator == ",":
        line, counted = line + text.count("\n", counted, at), at
        where = f"{source}:{line}"
        record, end = _value_at(text, at, where)
        yield line, _object(record, where)
        end = next_at(end)
        separator, at = text[end : end + 1], next_at(end + 1)
    if separator != "]" or at < len(text):
        raise ConfigError(f"{source}:{line}: not JSON (the array does not end where the file does)")


def _value_at(text: str, start: int, where: str) -> tuple[Any, int]:
    characters = FEWEST_CHARACTERS
    while True:
        try:
            value, end = strict_json_at(text[start : start + characters], 0)
        except ValueError as error:
            if start + characters < len(text) and characters < MOST_CHARACTERS:
                characters = min(16 * characters, MOST_CHARACTERS)
                continue
            more = f" or more than {MOST_CHARACTERS:,} characters" if start + characters < len(text) else ""
            raise ConfigError(f"{where}: not JSON{more} ({error}): {short(text[start : start + 60])}") from error
        return value, start + end


def _object(record: object, where: str) -> dict[str, Any]:
    """The object, with the keys of a batch request's body beside its own as `body.<key>`."""
    if not isinstance(record, dict):
        raise ConfigError(f"{where}: {short(record, quoted=True)} is no object", 'write {"prompt": "..."}')
    body = record.get("body")
    if isinstance(body, dict) and not any(key.startswith("body.") for key in record):
        return {key: record[key] for key in record if key != "body"} | {f"body.{key}": body[key] for key in body}
    return record


def _csv_records(text: str, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row below the header, by column, with the number of the line that it begins in."""
    # Of the whole process: a prompt may be longer than csv's own limit, 131,072 characters.
    csv.field_size_limit(MOST_CHARACTERS)
    header, numbers, rows = list[str](), frozenset[str](), csv.reader(io.StringIO(text, newline=""), strict=True)
    number = 1
    try:
        for row in rows:
            begin, number = number, rows.line_num + 1
            if not any(cell.strip() for cell in row):
                continue
            if not header:
                header = [name.strip() for name in row]
                if twice := sorted(name for name, count in Counter(header).items() if count > 1):
                    raise ConfigError(f"{source}:{begin}: two columns are called {short(twice[0])!r}")
                numbers = recognised(header, f"{source}:{begin}").numbers
                continue
            if len(row) != len(header):
                raise ConfigError(f"{source}:{begin}: has {pluralize(len(row), 'cell')}, and the header {len(header)}")
            cells = zip(header, row, strict=True)
            yield begin, {name: _cell(cell) if name in numbers else cell for name, cell in cells}
    except csv.Error as error:
        raise ConfigError(f"{source}:{number}: not CSV ({error})") from error


def _cell(cell: str) -> int | float | str | None:
    """The number in a cell of a CSV file, None for an empty one; anything else as it is."""
    cell = cell.strip()
    if not NUMBER.fullmatch(cell):
        return cell or None
    return int(cell) if cell.lstrip("-").isdigit() else float(cell)
