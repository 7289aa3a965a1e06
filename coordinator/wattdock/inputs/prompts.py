"""The prompts of one pass: bundled, from a JSONL file, or synthetic token ids.

Tokenises nothing and knows no model beyond the size of its vocabulary.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from wattdock.errors import ConfigError
from wattdock.files import read_regular
from wattdock.text import from_json

if TYPE_CHECKING:
    from wattdock.config import ExperimentConfig, WorkloadSpec

BUNDLED = "bundled"
KEYS = {"prompt", "token_ids", "max_output_tokens"}

Item = str | tuple[int, ...]


@dataclass(frozen=True)
class PromptSet:
    """What one pass sends, in order.

    Attributes:
        items: Text, or token ids.
        max_output_tokens: Per item its own limit, or None for the workload's; as long as `items`.
        sha256: Of the whole source, not of this selection: the file's bytes, or how synthetic ids are drawn.
        name: "bundled", "synthetic-<length>", or the file's name.
        reused: The source is too small: some prompt was in an earlier pass, or stands here twice.
    """

    items: tuple[Item, ...]
    max_output_tokens: tuple[int | None, ...]
    sha256: str
    name: str
    reused: bool = False

    def with_limits(self, work: WorkloadSpec, *, pass_index: int) -> PromptSet:
        """Return the prompts with output limits drawn as `work` says; equal arguments give equal limits."""
        if not work.output_spread and not work.staggered_start:
            return self
        generator = np.random.Generator(np.random.PCG64([work.seed, pass_index]))
        share = 1 + work.output_spread * generator.uniform(-1, 1, size=len(self.items))
        limits = [
            max(1, round(work.max_output_tokens * part)) if limit is None else limit
            for limit, part in zip(self.max_output_tokens, share, strict=True)
        ]
        if work.staggered_start:
            first = min(work.batch_size, len(limits))
            for place, order in enumerate(generator.permutation(first)):
                limits[place] = max(1, round(limits[place] * (int(order) + 1) / first))
        return replace(self, max_output_tokens=tuple(limits))


def load_prompts(config: ExperimentConfig, *, pass_index: int, vocab_size: int | None = None) -> PromptSet:
    """Return the prompts of one pass with their output limits; equal arguments give equal prompts.

    No pass repeats another's prompts while the source has unused ones: passes take consecutive slices of one seeded
    permutation of a bundled or JSONL source, and differently seeded draws of a synthetic source.

    Args:
        pass_index: From 0; every pass that must not see another's prompts has its own, warm-up included.
        vocab_size: Ids are below it; needed for synthetic prompts, and checked against where a file holds ids.

    Raises:
        ConfigError: The source cannot be read or used; the message names file and line.
    """
    work = config.total_workload
    if config.prompts.source == "synthetic":
        prompts = _synthetic(config.prompts.input_tokens, work, pass_index=pass_index, vocab_size=vocab_size)
        return prompts.with_limits(work, pass_index=pass_index)
    source, count = _read(config, vocab_size), work.prompts_per_pass
    order = np.random.Generator(np.random.PCG64(work.seed)).permutation(len(source.items))
    picked = [int(order[i % len(order)]) for i in range(pass_index * count, (pass_index + 1) * count)]
    prompts = replace(
        source,
        items=tuple(source.items[i] for i in picked),
        max_output_tokens=tuple(source.max_output_tokens[i] for i in picked),
        reused=(pass_index + 1) * count > len(order),
    )
    return prompts.with_limits(work, pass_index=pass_index)


def check_prompts(config: ExperimentConfig, *, has_tokenizer: bool = True, vocab_size: int | None = None) -> str | None:
    """Check the source of an experiment's prompts before anything is started.

    Args:
        has_tokenizer: Whether the model can take text.
        vocab_size: As in `load_prompts`; None leaves ids unchecked.

    Returns:
        The SHA-256 of a prompts file; None where prompts come from no file.

    Raises:
        ConfigError: The source cannot be read, or holds text that the model cannot take.
    """
    if config.prompts.source == "synthetic":
        return None
    source = _read(config, vocab_size)
    if not has_tokenizer and any(isinstance(item, str) for item in source.items):
        raise ConfigError(
            f"prompts {source.name!r} are text and the model has no tokenizer; set workload.prompts.source: synthetic"
        )
    return source.sha256 if config.prompts.file else None


def _synthetic(input_tokens: int, work: WorkloadSpec, *, pass_index: int, vocab_size: int | None) -> PromptSet:
    """Ids drawn uniformly from the whole vocabulary, PCG64 seeded by (seed, pass)."""
    seed, count = work.seed, work.prompts_per_pass
    if vocab_size is None:
        raise ConfigError("synthetic prompts need the model's vocabulary size; give a model whose config.json tells it")
    generator = np.random.Generator(np.random.PCG64([seed, pass_index]))
    ids = generator.integers(0, vocab_size, size=(count, input_tokens))
    recipe = {"ids": "uniform", "generator": "PCG64", "seed": seed, "vocab_size": vocab_size, "tokens": input_tokens}
    return PromptSet(
        items=tuple(map(tuple, ids.tolist())),
        max_output_tokens=(None,) * count,
        sha256=hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest(),
        name=f"synthetic-{input_tokens}",
    )


def _read(config: ExperimentConfig, vocab_size: int | None) -> PromptSet:
    """The bundled set or a JSONL file, checked line by line."""
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
    return PromptSet(items, limits, hashlib.sha256(content).hexdigest(), name)


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
