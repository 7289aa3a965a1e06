"""Where prompts come from: the bundled set, a file of text, ids or lengths, or a distribution of lengths; and in words.

Tokenises nothing and draws no ids.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, ConfigError, os_errors_as
from wattdock.inputs.prompts import formats
from wattdock.inputs.prompts.formats import recognised, short
from wattdock.opening import read_regular
from wattdock.text import pluralize, strict_json
from wattdock.values import all_known

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wattdock.config import ExperimentConfig
    from wattdock.inputs.prompts.formats import Format, Item

BUNDLED = "bundled"
# The longest record; a prompt of a million tokens has five million characters, and JSON takes up to thirty times its
# size while it is read. A record is looked for in the fewest first, then in sixteen times as many.
MOST_CHARACTERS, FEWEST_CHARACTERS = 16_000_000, 16_384
SPACE = re.compile(r"[ \t\r\n]*+")


class Reading(NamedTuple):
    """How an experiment uses a file.

    Attributes:
        vocab_size: Token ids are below it; None where it is unknown.
        replays: Whether instants are replayed.
        chat: Whether text is wrapped in the model's chat template.
    """

    vocab_size: int | None
    replays: bool = False
    chat: bool = True


@dataclass(frozen=True)
class Source:
    """What a source holds, in order.

    Attributes:
        items: Text, a chat, token ids, or the number of ids that are still to be drawn.
        max_output_tokens: Per item its own limit, or None for the workload's; as long as `items`.
        sha256: Of the whole source: the file's bytes, or how synthetic ids are drawn.
        name: "bundled", "synthetic-<length>", or the file's name.
        arrivals_s: When each came, since the first; empty where some record has no instant.
        format: Name of the file's format; None for a source that is no file.
        ignored: Of the file: keys, and records, that do not change the work.
    """

    items: tuple[Item | int, ...]
    max_output_tokens: tuple[int | None, ...]
    sha256: str
    name: str
    arrivals_s: tuple[float, ...] = ()
    format: str | None = None
    ignored: tuple[str, ...] = ()

    @cached_property
    def prompt_tokens(self) -> list[int] | None:
        """Tokens of each item; None where some item is text or a chat, whose length is none in tokens."""
        sizes = [len(item) if isinstance(item, array) else item for item in self.items]
        return all_known([size if isinstance(size, int) else None for size in sizes])


def read_source(config: ExperimentConfig, vocab_size: int | None) -> Source | None:
    """Return the bundled set or a file, checked record by record; None for synthetic prompts.

    Raises:
        ConfigError: It cannot be read or used; the message names file and line.
    """
    source, path, work = config.prompts.source or BUNDLED, config.prompts.file, config.workload
    if source == "synthetic":
        return None
    if path is None:
        return _parsed((files("wattdock.inputs") / "prompts.jsonl").read_bytes(), source, BUNDLED, Reading(vocab_size))
    remedy = "give bundled, synthetic, or a JSONL or JSON file"
    with os_errors_as(ConfigError, f"cannot read prompts from {source!r}", remedy):
        content = read_regular(path, follow=True)
    reading = Reading(vocab_size, work.arrival == "trace", work.prompts.chat)
    return _parsed(content, source, path.name, reading)


# Traces may have millions of lines, and each pass reads its part.
@lru_cache(maxsize=1)
def _parsed(content: bytes, source: str, name: str, reading: Reading) -> Source:
    """Return what a file holds; its first record tells the format, which every further record must have."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{source}:{line}: byte 0x{content[error.start]:02x} is not UTF-8", "save as UTF-8 JSONL or JSON"
        ) from error
    form: Format | None = None
    keys, items, limits, instants_ns, skipped = set[str](), list["Item | int"](), list[int | None](), list[int](), 0
    for number, record in _json_records(text, source):
        where = f"{source}:{number}"
        form = form or recognised(record, where)
        item, limit, at_ns = _read(form, record, where, reading)
        keys |= record.keys()
        if item is None:
            skipped += 1
            continue
        items.append(item)
        limits.append(limit)
        if at_ns is not None:
            if instants_ns and at_ns < instants_ns[-1]:
                raise ConfigError(f"{where}: comes before the line above", "sort the file by time")
            instants_ns.append(at_ns)
    if skipped and not items:
        what = f"{source}: no conversation begins with a user's turn, and no other can be sent"
        raise ConfigError(what, cause=Cause.EMPTY)
    if not items or not form:
        raise ConfigError(f"{source} holds no prompts", 'write one {"prompt": "..."} per line', cause=Cause.EMPTY)
    used = {*form.prompts, *form.limits, form.instant if reading.replays else ""}
    notes = ["all turns but the first"] if form.name == "ShareGPT" else []
    notes += [f"{pluralize(skipped, 'conversation')} without a user's turn first"] if skipped else []
    is_dated = len(instants_ns) == len(items)
    return Source(
        *(tuple(items), tuple(limits), hashlib.sha256(content).hexdigest(), name),
        arrivals_s=tuple((at_ns - instants_ns[0]) / NS_PER_S for at_ns in instants_ns) if is_dated else (),
        format=form.name,
        ignored=(*sorted(keys - used), *notes),
    )


def _read(
    form: Format, record: Mapping[str, Any], where: str, reading: Reading
) -> tuple[Item | int | None, int | None, int | None]:
    """Return a record's prompt, the limit of its answer and its instant, ns; without a prompt nothing can be sent."""
    prompt, limit = form.prompt_and_limit(record, where)
    reader = form.prompts[prompt]
    if reader is formats.messages and not reading.chat:
        raise ConfigError(f"{where}: messages need the model's chat template, and workload.prompts.chat is false")
    item = reader(record[prompt], where, prompt)
    if isinstance(item, array) and reading.vocab_size is not None and max(item) >= reading.vocab_size:
        raise ConfigError(
            f"{where}: token id {max(item)} is not below the model's vocabulary size {reading.vocab_size}"
        )
    # A limit that may be left out may be null.
    is_given = limit in form.needed or (limit and record[limit] is not None)
    tokens = formats.tokens(record[limit], where, limit) if limit and is_given else None
    instant = form.instant if form.instant in record else None
    return item, tokens, formats.instant(record[instant], where, instant) if instant else None


def _after_space(text: str, start: int) -> int:
    match = SPACE.match(text, start)
    return match.end() if match else start


def _json_records(text: str, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each object, one after another or in an array, with the number of the line that it begins in."""
    at, line, counted, separator = _after_space(text, 0), 1, 0, ""
    if in_array := text[at : at + 1] == "[":
        at = _after_space(text, at + 1)
    while at < len(text):
        line, counted = line + text.count("\n", counted, at), at
        where, length, characters = f"{source}:{line}", 0, FEWEST_CHARACTERS
        while not length:
            try:
                record, length = strict_json(text[at : at + characters])
            except ValueError as error:
                is_cut = at + characters < len(text)
                if not is_cut or characters == MOST_CHARACTERS:
                    more = f" or more than {MOST_CHARACTERS:,} characters" if is_cut else ""
                    what = f"{where}: not JSON{more} ({error}): {short(text[at : at + 60])}"
                    raise ConfigError(
                        what, 'write one {"prompt": "..."} per line; docs/how-to/studies.md makes it of CSV'
                    ) from error
                characters = min(16 * characters, MOST_CHARACTERS)
        if not isinstance(record, dict):
            raise ConfigError(f'{where}: {short(record, quoted=True)} is no object; write {{"prompt": "..."}}')
        yield line, record
        at = _after_space(text, at + length)
        if in_array:
            separator, at = text[at : at + 1], _after_space(text, at + 1)
            if separator != ",":
                break
    if in_array and (separator != "]" or at < len(text)):
        raise ConfigError(f"{source}:{line}: not JSON (the array does not end where the file does)")


class PromptSummary(NamedTuple):
    """What the first measured pass of an experiment sends.

    Attributes:
        text: For people: requests, arrivals, repeated prompts.
        format, ignored: As in `Source`.
    """

    text: str
    format: str | None = None
    ignored: tuple[str, ...] = ()
