"""Where prompts come from: the bundled set, a file of text, ids or lengths, or a distribution of lengths.

Tokenises nothing and draws no ids.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError
from wattdock.files import read_regular
from wattdock.text import from_json

if TYPE_CHECKING:
    from wattdock.config import ExperimentConfig

BUNDLED = "bundled"
KEYS = {"prompt", "token_ids", "max_output_tokens"}

Item = str | tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """What a source holds, in order.

    Attributes:
        items: Text, token ids, or the number of ids that are still to be drawn.
        max_output_tokens: Per item its own limit, or None for the workload's; as long as `items`.
        sha256: Of the whole source: the file's bytes, or how synthetic ids are drawn.
        name: "bundled", "synthetic-<length>", or the file's name.
    """

    items: tuple[Item | int, ...]
    max_output_tokens: tuple[int | None, ...]
    sha256: str
    name: str


def read_source(config: ExperimentConfig, vocab_size: int | None) -> Source:
    """Return the bundled set or a file, checked line by line.

    Raises:
        ConfigError: It cannot be read or used; the message names file and line.
    """
    source, path = config.prompts.source or BUNDLED, config.prompts.file
    if path is None:
        name, content = BUNDLED, (files("wattdock.inputs") / "prompts.jsonl").read_bytes()
    else:
        try:
            name, content = path.name, read_regular(path, follow=True)
        except OSError as error:
            raise ConfigError(
                f"cannot read prompts from {source!r} ({error.strerror}); give bundled, synthetic or a JSONL file"
            ) from error
    parsed = [_parsed(line, f"{source}:{number}", vocab_size) for number, line in _lines(content, source)]
    if not parsed:
        raise ConfigError(f'{source} holds no prompts; write one {{"prompt": "..."}} per line')
    items, limits = zip(*parsed, strict=True)
    return Source(items, limits, hashlib.sha256(content).hexdigest(), name)


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


def _parsed(line: str, where: str, vocab_size: int | None) -> tuple[Item, int | None]:
    """One line as (prompt, its own output limit)."""
    try:
        record = from_json(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error}): {_short(line)}") from error
    if not isinstance(record, dict):
        raise ConfigError(f'{where}: {_short(line)} is no object; write {{"prompt": "..."}}')
    if unknown := sorted(record.keys() - KEYS):
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(sorted(KEYS))}")
    if ("prompt" in record) == ("token_ids" in record):
        raise ConfigError(f"{where}: give exactly one of prompt and token_ids, not {sorted(record)}")
    limit = record.get("max_output_tokens")
    if limit is not None and not (_is_int(limit) and limit >= 1):
        raise ConfigError(f"{where}: max_output_tokens is {_short(limit)}; it must be a whole number from 1")
    if "prompt" in record:
        return _text(record["prompt"], where), limit
    return _ids(record["token_ids"], where, vocab_size), limit


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: prompt is {_short(value)}; it must be a text that is not blank")
    return value


def _ids(value: object, where: str, vocab_size: int | None) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(_is_int(token) and token >= 0 for token in value):
        raise ConfigError(f"{where}: token_ids is {_short(value)}; it must be a list of whole numbers from 0")
    if vocab_size is not None and max(value) >= vocab_size:
        raise ConfigError(f"{where}: token id {max(value)} is not below the model's vocabulary size {vocab_size}")
    return tuple(value)


def _is_int(value: object) -> bool:
    """Whether a JSON value is a whole number; True is an int to Python only."""
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
