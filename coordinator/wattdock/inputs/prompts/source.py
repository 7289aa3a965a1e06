"""Where prompts come from: the bundled set, a file of text, ids or lengths, or a distribution of lengths.

Tokenises nothing and draws no ids.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from array import array
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from wattdock.clock import NS_PER_S
from wattdock.errors import ConfigError
from wattdock.files import read_regular
from wattdock.inputs.prompts import formats
from wattdock.inputs.prompts.formats import NUMBERS, PROMPT_OF, UNIT_NS, Role, short
from wattdock.text import pluralize, strict_json_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wattdock.config import ExperimentConfig
    from wattdock.inputs.prompts.formats import Format, Instant, Item, Layout

BUNDLED = "bundled"
NUMBER = re.compile(r"-?\d{1,25}(\.\d{1,25})?([eE][+-]?\d{1,3})?", re.ASCII)


class Reading(NamedTuple):
    """What an experiment needs of a file.

    Attributes:
        vocab_size: Token ids are below it; None where that is unknown.
        replays: Instants are used.
        time_unit: Of instants that are numbers, as the settings say; None is the format's own.
        shares_prefixes: The engine's prefix cache is on, so that ids of blocks matter.
        chat: Text is wrapped in the model's chat template.
    """

    vocab_size: int | None = None
    replays: bool = False
    time_unit: str | None = None
    shares_prefixes: bool = False
    chat: bool = True


@dataclass(frozen=True)
class Source:
    """What a source holds, in order.

    Attributes:
        items: Text, token ids, or the number of ids that are still to be drawn.
        max_output_tokens: Per item its own limit, or None for the workload's; as long as `items`.
        sha256: Of the whole source: the file's bytes, or how synthetic ids are drawn.
        name: "bundled", "synthetic-<length>", or the file's name.
        arrivals_s: When each came, from any epoch; empty where some record has no instant, or its unit is unknown.
        blocks: Per item, the ids of its blocks of tokens; empty where no prefix cache would use them.
        block_tokens: Tokens of a block.
        format: Name of the file's format; None for a source that is no file.
        ignored: Keys, and records, of the file that do not change the work.
        settings: Settings of a workload that the file's records say.
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
    settings: frozenset[tuple[str, float]] = frozenset()

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
        different = {item if isinstance(item, str) else bytes(item) for item in self.items if not isinstance(item, int)}
        return 1 - len(different) / len(self.items)


def read_source(config: ExperimentConfig, vocab_size: int | None) -> Source:
    """Return the bundled set or a file, checked record by record.

    Raises:
        ConfigError: It cannot be read or used; the message names file and line.
    """
    source, path, work = config.prompts.source or BUNDLED, config.prompts.file, config.workload
    if path is None:
        return _parsed((files("wattdock.inputs") / "prompts.jsonl").read_bytes(), source, BUNDLED, Reading(vocab_size))
    try:
        content = read_regular(path, follow=True)
    except OSError as error:
        raise ConfigError(
            f"cannot read prompts from {source!r} ({error.strerror}); give bundled, synthetic or a JSON, JSONL or CSV "
            "file"
        ) from error
    caching, replays = config.section.caches_prefixes, work.arrival == "trace"
    reading = Reading(vocab_size, replays, work.trace_time_unit, caching, work.prompts.chat)
    read = _parsed(content, source, path.name, reading)
    for name, value in sorted(read.settings):
        setting = name.removeprefix("body.")
        ours = getattr(work, setting)
        if value != (1 if ours is None else ours):
            raise ConfigError(f"{source}: {name} is {short(value)}, and workload.{setting} is {ours}; make them agree")
    return read


# Traces may have millions of lines, and each pass reads its part.
@lru_cache(maxsize=1)
def _parsed(content: bytes, source: str, name: str, reading: Reading) -> Source:
    """Read a file whose first record tells its format; every further one is held to it."""
    text, records = _text(content, source), _json_records
    if name.lower().endswith(".csv"):
        records = _csv_records
    elif text.lstrip().startswith("["):
        records = _array_records
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
        self.instants, self.blocks = list["Instant"](), list["array[int]"]()
        self.settings = set[tuple[str, float]]()
        self.skipped = 0

    def take(self, record: Mapping[str, Any], where: str) -> None:
        """Add one record."""
        self.form = form = self.form or formats.recognised(record, where)
        keys = tuple(record)
        if (layout := self.layouts.get(keys)) is None:
            layout = self.layouts[keys] = form.layout(keys, where)
        if layout.holds is Role.MESSAGES and not self.reading.chat:
            raise ConfigError(f"{where}: messages need the model's chat template, and workload.prompts.chat is false")
        item = PROMPT_OF[layout.holds](record[layout.prompt], where, layout.prompt)
        if item is None:
            self.skipped += 1
            return
        if isinstance(item, array) and self.reading.vocab_size is not None and max(item) >= self.reading.vocab_size:
            raise ConfigError(
                f"{where}: token id {max(item)} is not below the model's vocabulary size {self.reading.vocab_size}"
            )
        self.items.append(item)
        limit = record[layout.limit] if layout.limit else None
        may_lack = layout.limit not in form.needed
        self.limits.append(None if limit is None and may_lack else formats.tokens(limit, where, layout.limit or ""))
        if layout.instant:
            self._take_instant(record[layout.instant], layout.instant, where)
        if layout.blocks and self.reading.shares_prefixes:
            self.blocks.append(
                formats.blocks(record[layout.blocks], where, layout.blocks, tokens=item, each=form.block_tokens)
            )
        for key in layout.settings:
            self.settings.add((key, formats.number(record[key], where, key)))

    def _take_instant(self, value: object, key: str, where: str) -> None:
        unit = self.reading.time_unit or (self.form.unit if self.form else None)
        instant = formats.instant(value, where, key, unit or "s")
        before = self.instants[-1] if self.instants else instant
        if instant.kind != before.kind:
            raise ConfigError(f"{where}: {key} is a {instant.kind}, and the one above a {before.kind}")
        if instant.at_ns < before.at_ns:
            raise ConfigError(f"{where}: comes before the line above; sort the file by time")
        self.instants.append(instant)
        if self.reading.replays and instant.kind == "number":
            self._require_unit(value, key, where)

    def _require_unit(self, value: object, key: str, where: str) -> None:
        """Refuse numbers whose unit is not certain."""
        form, given = self.form, self.reading.time_unit
        if form and form.fixed_unit and given not in (None, form.unit):
            raise ConfigError(
                f"{where}: {key} is in {form.unit}, and workload.trace_time_unit is {given}; leave it out"
            )
        # Mooncake's milliseconds are whole; fractions are another tool's seconds under the same key.
        fraction_of_ms = form and form.unit == "ms" and not formats.is_int(value)
        if given is None and (not form or form.unit is None or fraction_of_ms):
            units = " | ".join(UNIT_NS)
            raise ConfigError(
                f"{where}: {key} is {short(value)}, in no known unit; set workload.trace_time_unit: {units}"
            )

    def source(self, sha256: str, source: str, name: str) -> Source:
        """Return what was taken."""
        form, reading = self.form, self.reading
        if not self.items or not form:
            raise ConfigError(f'{source} holds no prompts; write one {{"prompt": "..."}} per line')
        dated = bool(self.instants) and self.instants[0].kind != "number"
        if dated and reading.time_unit:
            raise ConfigError(f"{source}: arrivals are dates, which need no workload.trace_time_unit")
        first_ns = self.instants[0].at_ns if self.instants else 0
        whole = len(self.instants) == len(self.items) and (dated or reading.time_unit or form.unit)
        unused = {Role.IGNORED}
        unused |= set() if reading.replays else {Role.INSTANT}
        unused |= set() if reading.shares_prefixes else {Role.BLOCKS}
        seen = {key for keys in self.layouts for key in keys}
        ignored = sorted(key for key in seen if form.keys[key] in unused)
        if Role.TURNS in form.keys.values():
            ignored.append("all turns but the first")
        if self.skipped:
            ignored.append(f"{pluralize(self.skipped, 'conversation')} that no text of a user begins")
        return Source(
            items=tuple(self.items),
            max_output_tokens=tuple(self.limits),
            sha256=sha256,
            name=name,
            arrivals_s=tuple((at.at_ns - first_ns) / NS_PER_S for at in self.instants) if whole else (),
            blocks=tuple(self.blocks),
            block_tokens=form.block_tokens,
            format=form.name,
            ignored=tuple(ignored),
            settings=frozenset(self.settings),
        )


def _text(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{source}:{line}: byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from error


def _json_records(text: str, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the object in each line with the line's number; blank lines are none."""
    # Not splitlines: JSON strings may hold U+2028 and its like.
    for number, line in enumerate(text.split("\n"), start=1):
        if stripped := line.strip():
            record, end = _value_at(stripped, 0, f"{source}:{number}")
            if end < len(stripped):
                raise ConfigError(f"{source}:{number}: not JSON (more than one value): {short(stripped)}")
            yield number, _object(record, f"{source}:{number}")


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
    try:
        return strict_json_at(text, start)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error}): {short(text[start : start + 60])}") from error


def _object(record: object, where: str) -> dict[str, Any]:
    """The object, with the keys of a batch request's body beside its own as `body.<key>`."""
    if not isinstance(record, dict):
        raise ConfigError(f'{where}: {short(record, quoted=True)} is no object; write {{"prompt": "..."}}')
    body = record.get("body")
    if isinstance(body, dict) and not any(key.startswith("body.") for key in record):
        return {key: record[key] for key in record if key != "body"} | {f"body.{key}": body[key] for key in body}
    return record


def _csv_records(text: str, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row below the header, by column, with the number of the line that it begins in."""
    header, roles, rows = list[str](), dict[str, Role](), csv.reader(io.StringIO(text, newline=""), strict=True)
    number = 1
    try:
        for row in rows:
            begin, number = number, rows.line_num + 1
            if not any(cell.strip() for cell in row):
                continue
            if not header:
                header = [name.strip() for name in row]
                if twice := sorted({name for name in header if header.count(name) > 1}):
                    raise ConfigError(f"{source}:{begin}: two columns are called {short(twice[0])!r}")
                roles = dict(formats.recognised(header, f"{source}:{begin}").keys)
                continue
            if len(row) != len(header):
                raise ConfigError(f"{source}:{begin}: has {pluralize(len(row), 'cell')}, and the header {len(header)}")
            cells = zip(header, row, strict=True)
            yield begin, {name: _cell(cell) if roles[name] in NUMBERS else cell for name, cell in cells}
    except csv.Error as error:
        raise ConfigError(f"{source}:{number}: not CSV ({error})") from error


def _cell(cell: str) -> int | float | str | None:
    """The number in a cell of a CSV file, None for an empty one; anything else as it is."""
    cell = cell.strip()
    if not NUMBER.fullmatch(cell):
        return cell or None
    return int(cell) if cell.lstrip("-").isdigit() else float(cell)
