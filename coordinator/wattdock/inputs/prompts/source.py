"""Where prompts come from: the bundled set, a file of text, ids or lengths, or a distribution of lengths.

Tokenises nothing and draws no ids.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

from wattdock.errors import ConfigError
from wattdock.files import read_regular
from wattdock.inputs.prompts.trace import TRACE_KEYS, csv_records, short, trace_row
from wattdock.text import from_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattdock.config import ExperimentConfig

BUNDLED = "bundled"
PROMPT_KEYS = {"prompt", "token_ids"}
KEYS = PROMPT_KEYS | {"max_output_tokens"}

Ids: TypeAlias = "array[int]"  # of uint32: a pass has many millions
Item: TypeAlias = "str | array[int]"


@dataclass(frozen=True)
class Source:
    """What a source holds, in order.

    Attributes:
        items: Text, token ids, or the number of ids that are still to be drawn.
        max_output_tokens: Per item its own limit, or None for the workload's; as long as `items`.
        sha256: Of the whole source: the file's bytes, or how synthetic ids are drawn.
        name: "bundled", "synthetic-<length>", or the file's name.
        arrivals_s: When each came, from any epoch; empty where some line has no instant.
    """

    items: tuple[Item | int, ...]
    max_output_tokens: tuple[int | None, ...]
    sha256: str
    name: str
    arrivals_s: tuple[float, ...] = ()

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Tokens of prompt and answer, where lengths are all that is known of a request."""
        pairs = zip(self.items, self.max_output_tokens, strict=True)
        return [(prompt, answer) for prompt, answer in pairs if isinstance(prompt, int) and answer]


def read_source(config: ExperimentConfig, vocab_size: int | None) -> Source:
    """Return the bundled set or a file, checked line by line.

    Raises:
        ConfigError: It cannot be read or used; the message names file and line.
    """
    source, path = config.prompts.source or BUNDLED, config.prompts.file
    if path is None:
        return _parsed((files("wattdock.inputs") / "prompts.jsonl").read_bytes(), source, BUNDLED, vocab_size)
    try:
        content = read_regular(path, follow=True)
    except OSError as error:
        raise ConfigError(
            f"cannot read prompts from {source!r} ({error.strerror}); give bundled, synthetic or a JSONL or CSV file"
        ) from error
    return _parsed(content, source, path.name, vocab_size)


# Traces may have millions of lines, and each pass reads its part.
@lru_cache(maxsize=1)
def _parsed(content: bytes, source: str, name: str, vocab_size: int | None) -> Source:
    lines = _lines(content, source)
    is_csv = name.lower().endswith(".csv")
    items: list[Item | int] = []
    limits, instants = list[int | None](), list[float]()
    for number, record in csv_records(lines, source) if is_csv else _json_records(lines, source):
        where = f"{source}:{number}"
        item, limit, at_s = trace_row(record, where) if is_csv else _item(record, where, vocab_size)
        if at_s is not None:
            if instants and at_s < instants[-1]:
                raise ConfigError(f"{where}: comes before the line above; sort the file by time")
            instants.append(at_s)
        items.append(item)
        limits.append(limit)
    if not items:
        raise ConfigError(f'{source} holds no prompts; write one {{"prompt": "..."}} per line')
    arrivals_s = tuple(instants) if len(instants) == len(items) else ()
    return Source(tuple(items), tuple(limits), hashlib.sha256(content).hexdigest(), name, arrivals_s)


def _lines(content: bytes, source: str) -> list[tuple[int, str]]:
    """Lines that are not blank, with their numbers from 1."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{source}:{line}: byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from error
    # Not splitlines: JSON strings may hold U+2028 and its like.
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _json_records(lines: list[tuple[int, str]], source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the object in each line with the line's number."""
    for number, line in lines:
        try:
            record = from_json(line)
        except ValueError as error:
            raise ConfigError(f"{source}:{number}: not JSON ({error}): {short(line)}") from error
        if not isinstance(record, dict):
            raise ConfigError(f'{source}:{number}: {short(line)} is no object; write {{"prompt": "..."}}')
        yield number, record


def _item(record: dict[str, Any], where: str, vocab_size: int | None) -> tuple[Item | int, int | None, float | None]:
    """One line as (prompt or its length, its own output limit, its arrival in seconds)."""
    if not record.keys() & PROMPT_KEYS and record.keys() & TRACE_KEYS:
        return trace_row(record, where)
    if unknown := sorted(record.keys() - KEYS):
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(sorted(KEYS))}")
    if ("prompt" in record) == ("token_ids" in record):
        raise ConfigError(f"{where}: give exactly one of prompt and token_ids, not {sorted(record)}")
    limit = record.get("max_output_tokens")
    if limit is not None and not (_is_int(limit) and limit >= 1):
        raise ConfigError(f"{where}: max_output_tokens is {short(limit)}; it must be a whole number from 1")
    if "prompt" in record:
        return _text(record["prompt"], where), limit, None
    return _ids(record["token_ids"], where, vocab_size), limit, None


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: prompt is {short(value)}; it must be a text that is not blank")
    return value


def _ids(value: object, where: str, vocab_size: int | None) -> Ids:
    if not isinstance(value, list) or not value or not all(_is_int(token) and 0 <= token < 2**32 for token in value):
        raise ConfigError(f"{where}: token_ids is {short(value)}; it must be a list of whole numbers from 0 to 2³² - 1")
    if vocab_size is not None and max(value) >= vocab_size:
        raise ConfigError(f"{where}: token id {max(value)} is not below the model's vocabulary size {vocab_size}")
    return array("I", value)


def _is_int(value: object) -> bool:
    """Whether a JSON value is a whole number; True is an int to Python only."""
    return isinstance(value, int) and not isinstance(value, bool)
