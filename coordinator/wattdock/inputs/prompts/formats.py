"""Formats of prompt files and traces: what each key of a record means, and what a record says.

Opens no file. Each format's keys were read where `FORMATS` says.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from wattdock.clock import NS_PER_S
from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Ids: TypeAlias = "array[int]"  # of uint32: a pass has many millions
Item: TypeAlias = "str | array[int]"

UNIT_NS = {"s": NS_PER_S, "ms": 1_000_000, "us": 1_000, "ns": 1}
# More tokens are no request; more seconds since any epoch are a mistaken unit.
MOST_TOKENS, MOST_NS = 10**9, 10**12 * NS_PER_S
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DATE = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
# A turn of a conversation as ShareGPT and as OpenAI spell it.
TURN_KEYS = (("from", "value"), ("role", "content"))
USERS = ("human", "user")


class Role(Enum):
    """What a key of a record holds. Keys of the first five are alternatives: a record has exactly one of them."""

    TEXT = auto()
    IDS = auto()
    # A chat completion's messages, and a whole conversation, whose first turn is the prompt.
    MESSAGES = auto()
    TURNS = auto()
    PROMPT_TOKENS = auto()
    LIMIT = auto()
    INSTANT = auto()
    # Ids of the prompt's blocks; equal ids are equal tokens.
    BLOCKS = auto()
    # A setting of the workload, which must agree.
    SETTING = auto()
    # Cannot change the work.
    IGNORED = auto()


PROMPTS = (Role.TEXT, Role.IDS, Role.MESSAGES, Role.TURNS, Role.PROMPT_TOKENS)
NUMBERS = (Role.PROMPT_TOKENS, Role.LIMIT, Role.INSTANT, Role.SETTING)


class Layout(NamedTuple):
    """Which key of a record holds what; None where none does."""

    prompt: str
    holds: Role
    limit: str | None
    instant: str | None
    blocks: str | None
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Format:
    """A format of files, told by its keys.

    Attributes:
        keys: Every key that a record may have.
        needed: Keys that every record has; they and `keys` tell the format from all others.
        unit: Of instants that are numbers: "s", "ms", "us" or "ns"; None where writers of the format differ.
        fixed_unit: The key says the unit, so that no setting may say another.
        block_tokens: How many tokens each id of `Role.BLOCKS` stands for.
    """

    name: str
    keys: Mapping[str, Role]
    needed: frozenset[str]
    unit: str | None = None
    fixed_unit: bool = False
    block_tokens: int = 0

    def layout(self, keys: Iterable[str], where: str) -> Layout:
        """Return which of a record's keys holds what.

        Raises:
            ConfigError: The keys are not the format's.
        """
        present = list(keys)
        if unknown := sorted(set(present) - self.keys.keys()):
            raise ConfigError(
                f"{where}: unknown key {short(unknown[0])!r}; known are {', '.join(sorted(self.keys))} ({self.name})"
            )
        if lacking := sorted(self.needed - set(present)):
            raise ConfigError(f"{where}: has none of {', '.join(lacking)}, which each record of {self.name} needs")
        held = {role: [key for key in present if self.keys[key] is role] for role in Role}
        prompts = [key for role in PROMPTS for key in held[role]]
        if len(prompts) != 1:
            known = sorted(key for key, role in self.keys.items() if role in PROMPTS)
            raise ConfigError(f"{where}: give exactly one of {' and '.join(known)}, not {sorted(present)}")
        if len(held[Role.LIMIT]) > 1:
            raise ConfigError(f"{where}: give only one of {' and '.join(held[Role.LIMIT])}")
        limit, instant, blocks = (next(iter(held[role]), None) for role in (Role.LIMIT, Role.INSTANT, Role.BLOCKS))
        return Layout(prompts[0], self.keys[prompts[0]], limit, instant, blocks, tuple(held[Role.SETTING]))


def _format(
    name: str,
    keys: Mapping[str, Role],
    *,
    ignored: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
    unit: str | None = None,
    fixed_unit: bool = False,
    block_tokens: int = 0,
) -> Format:
    every = {**keys, **dict.fromkeys(ignored, Role.IGNORED)}
    return Format(name, every, frozenset(keys.keys() - {*optional}), unit, fixed_unit, block_tokens)


_LENGTHS = {"input_length": Role.PROMPT_TOKENS, "output_length": Role.LIMIT}
_LIMITS, _SETTINGS = ("max_tokens", "max_completion_tokens"), ("temperature", "top_p")
_CANNOT_MATTER = ("model", "user", "metadata", "stream")
_BATCH = {
    **dict.fromkeys(("custom_id", "method", "url", *(f"body.{name}" for name in _CANNOT_MATTER)), Role.IGNORED),
    "body.messages": Role.MESSAGES,
    **{f"body.{name}": Role.LIMIT for name in _LIMITS},
    **{f"body.{name}": Role.SETTING for name in _SETTINGS},
}
# Sources: datasets of vllm-project/vllm (benchmarks/datasets.py) and NVIDIA/TensorRT-LLM (benchmarks/cpp/utils);
# OpenAI's references of chat completions and batches; the files of Azure/AzurePublicDataset (2023, 2024),
# HPMLL/BurstGPT (versions 1 and 2) and kvcache-ai/Mooncake (FAST25-release); the README of
# alibaba-edu/qwen-bailian-usagetraces-anon. GuideLLM writes seconds under `timestamp`, AIPerf milliseconds.
FORMATS = (
    _format(
        "wattdock's prompts",
        {"prompt": Role.TEXT, "token_ids": Role.IDS, "max_output_tokens": Role.LIMIT},
        optional=("prompt", "token_ids", "max_output_tokens"),
    ),
    _format(
        "wattdock's lengths",
        {"input_tokens": Role.PROMPT_TOKENS, "output_tokens": Role.LIMIT, "arrival_s": Role.INSTANT},
        optional=("arrival_s",),
        unit="s",
        fixed_unit=True,
    ),
    _format("vLLM's custom data set", {"prompt": Role.TEXT, "output_tokens": Role.LIMIT}),
    _format(
        "TensorRT-LLM",
        {"task_id": Role.IGNORED, "prompt": Role.TEXT, "input_ids": Role.IDS, "output_tokens": Role.LIMIT},
        optional=("prompt", "input_ids"),
    ),
    _format("ShareGPT", {"conversations": Role.TURNS}, ignored=("id",)),
    _format("ShareGPT", {"conversation": Role.TURNS}, ignored=("id",)),
    _format(
        "OpenAI messages",
        {"messages": Role.MESSAGES, **dict.fromkeys(_LIMITS, Role.LIMIT), **dict.fromkeys(_SETTINGS, Role.SETTING)},
        optional=(*_LIMITS, *_SETTINGS),
        ignored=_CANNOT_MATTER,
    ),
    _format("OpenAI batch", _BATCH, optional=tuple(_BATCH.keys() - {"custom_id", "body.messages"})),
    _format(
        "BurstGPT",
        {"Timestamp": Role.INSTANT, "Request tokens": Role.PROMPT_TOKENS, "Response tokens": Role.LIMIT},
        ignored=("Session ID", "Elapsed time", "Model", "Total tokens", "Log Type"),
        unit="s",
    ),
    _format("Azure", {"TIMESTAMP": Role.INSTANT, "ContextTokens": Role.PROMPT_TOKENS, "GeneratedTokens": Role.LIMIT}),
    _format(
        "Mooncake",
        {"timestamp": Role.INSTANT, **_LENGTHS, "hash_ids": Role.BLOCKS},
        unit="ms",
        block_tokens=512,
    ),
    _format(
        "Bailian",
        {"chat_id": Role.IGNORED, "timestamp": Role.INSTANT, **_LENGTHS, "hash_ids": Role.BLOCKS},
        ignored=("parent_chat_id", "type", "turn"),
        unit="s",
        block_tokens=16,
    ),
    _format("lengths", {**_LENGTHS, "timestamp": Role.INSTANT}, optional=("timestamp",)),
)


def recognised(keys: Iterable[str], where: str) -> Format:
    """Return the format whose keys a file's first record has.

    Raises:
        ConfigError: No format has all of them; the message is about the nearest one.
    """
    present = set(keys)
    fitting = [form for form in FORMATS if form.needed <= present <= form.keys.keys()]
    if len(fitting) == 1:
        return fitting[0]
    if not any(present & form.keys.keys() for form in FORMATS) and present:
        known = ", ".join(dict.fromkeys(form.name for form in FORMATS))
        raise ConfigError(f"{where}: {short(', '.join(sorted(present)))} are keys of no known format: {known}")
    nearest = max(FORMATS, key=lambda form: 2 * len(present & form.keys.keys()) - len(form.needed - present))
    nearest.layout(present, where)
    raise ConfigError(f"{where}: {', '.join(sorted(present))} fit {' and '.join(form.name for form in fitting)}")


def text(value: object, where: str, key: str) -> str:
    """Return a prompt of text.

    Raises:
        ConfigError: It is no text, or blank.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: {key} is {short(value)}; it must be a text that is not blank")
    return value


def ids(value: object, where: str, key: str) -> Ids:
    """Return a prompt of token ids.

    Raises:
        ConfigError: It is no list of them.
    """
    if not isinstance(value, list) or not value or not all(is_int(token) and 0 <= token < 2**32 for token in value):
        raise ConfigError(f"{where}: {key} is {short(value)}; it must be a list of whole numbers from 0 to 2³² - 1")
    return array("I", value)


def tokens(value: object, where: str, key: str) -> int:
    """Return a number of tokens.

    Raises:
        ConfigError: It is no whole number from 1.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < MOST_TOKENS:
        raise ConfigError(f"{where}: {key} is {short(value)}; it must be a whole number from 1 (leave out what failed)")
    return value


def only_message(value: object, where: str, key: str) -> str:
    """Return the text of a chat completion's only message.

    Raises:
        ConfigError: There are several messages, or the one is not a user's text.
    """
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        raise ConfigError(f"{where}: {key} is {short(value)}; it must be a list of messages")
    roles = [str(message.get("role")) for message in value]
    if roles != ["user"]:
        raise ConfigError(
            f"{where}: {key} are of {short(', '.join(roles))}; only a single message of a user can be sent yet: "
            'give it alone, or write the whole as {"prompt": …} and set workload.prompts.chat: false'
        )
    return _content(value[0], TURN_KEYS[1], where)


def first_turn(value: object, where: str, key: str) -> str | None:
    """Return what a user says at the start of a conversation; None where no user's text is there.

    Raises:
        ConfigError: It is no conversation, or its first turn is a system's, which could not be sent with it.
    """
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        raise ConfigError(f"{where}: {key} is {short(value)}; it must be a list of turns")
    if not value:
        return None
    spelling = next((names for names in TURN_KEYS if names[0] in value[0]), TURN_KEYS[0])
    speaker = value[0].get(spelling[0])
    if speaker == "system":
        raise ConfigError(f"{where}: {key} begin with a system's turn, which cannot be sent yet; leave it out")
    said = value[0].get(spelling[1])
    if speaker not in USERS or (isinstance(said, str) and not said.strip()):
        return None
    return _content(value[0], spelling, where)


def _content(message: Mapping[str, Any], names: tuple[str, str], where: str) -> str:
    """The text of a message; a list with one part of text is a text."""
    if unknown := sorted(message.keys() - {*names}):
        raise ConfigError(f"{where}: unknown key {short(unknown[0])!r} in a message; known are {', '.join(names)}")
    content = message.get(names[1])
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        content = part.get("text") if part.keys() == {"type", "text"} and part["type"] == "text" else content
    return text(content, where, names[1])


def blocks(value: object, where: str, key: str, *, tokens: object, each: int) -> array[int]:
    """Return the ids of a prompt's blocks.

    Args:
        tokens: Of the prompt, the last of whose blocks may not be full.
        each: Tokens of a block.

    Raises:
        ConfigError: It is no list of ids, or not one for each block.
    """
    if not isinstance(value, list) or not all(is_int(block) and 0 <= block < 2**63 for block in value):
        raise ConfigError(f"{where}: {key} is {short(value)}; it must be a list of whole numbers from 0 to 2⁶³ - 1")
    if isinstance(tokens, int) and len(value) not in (tokens // each, -(-tokens // each)):
        raise ConfigError(
            f"{where}: {key} has {len(value)} blocks, and {tokens} tokens have {-(-tokens // each)} of {each}"
        )
    return array("Q", value)


def number(value: object, where: str, key: str) -> float:
    """Return a setting's value.

    Raises:
        ConfigError: It is no number.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(f"{where}: {key} is {short(value)}; it must be a number")
    return value


PROMPT_OF: Mapping[Role, Callable[[object, str, str], Item | int | None]] = {
    Role.TEXT: text,
    Role.IDS: ids,
    Role.MESSAGES: only_message,
    Role.TURNS: first_turn,
    Role.PROMPT_TOKENS: tokens,
}


class Instant(NamedTuple):
    """When a request came: ns since any epoch, and how the file writes instants."""

    at_ns: int
    kind: Literal["number", "date", "date with an offset from UTC"]


def instant(value: object, where: str, key: str, unit: str) -> Instant:
    """Return when a request came: a number in a unit, or an ISO 8601 date, exact to the nanosecond.

    Raises:
        ConfigError: It is no instant.
    """
    if isinstance(value, str) and (match := DATE.fullmatch(value.strip())):
        seconds, fraction, offset = match.groups()
        try:
            date = datetime.fromisoformat(seconds + (offset or "+00:00"))
        except ValueError as error:
            raise ConfigError(f"{where}: {key} is {short(value)}, which is no instant ({error})") from error
        whole_s = (date - EPOCH) // (date.resolution * 1_000_000)
        at_ns = whole_s * NS_PER_S + int((fraction or "0").ljust(9, "0"))
        return Instant(at_ns, "date with an offset from UTC" if offset else "date")
    if not (is_int(value) or (isinstance(value, float) and math.isfinite(value))):
        raise ConfigError(f"{where}: {key} is {short(value)}, which is no instant")
    at_ns = value * UNIT_NS[unit] if isinstance(value, int) else round(Decimal(repr(value)) * UNIT_NS[unit])
    if abs(at_ns) >= MOST_NS:
        raise ConfigError(f"{where}: {key} is {short(value)}, which is no instant")
    return Instant(at_ns, "number")


def is_int(value: object) -> bool:
    """Return whether a JSON value is a whole number; True is an int to Python only."""
    return isinstance(value, int) and not isinstance(value, bool)


def short(value: object, *, quoted: bool = False) -> str:
    """Return what a file holds, in one line of at most 60 characters; a text as it is unless `quoted`."""
    plain = value if isinstance(value, str) and value.isprintable() and not quoted else json.dumps(value)
    return plain if len(plain) <= 60 else f"{plain[:57]}..."
