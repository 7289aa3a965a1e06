"""Formats of prompt files: what each key of a record means, and what a record says.

Opens no file. Where each format's keys were read stands at `FORMATS`.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, ConfigError
from wattdock.text import SURROGATE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

Ids: TypeAlias = "array[int]"  # of uint32: a pass has many millions
# Role and text of each message.
Chat: TypeAlias = "tuple[tuple[str, str], ...]"
Item: TypeAlias = "str | array[int] | Chat"
# From a value, the file and line where it stands and its key to the prompt, or its length in tokens.
Reader: TypeAlias = "Callable[[object, str, str], Item | int | None]"

# The most tokens that a request can have, and the latest instant, s: larger ones are numbers in a mistaken unit.
MOST_TOKENS, MOST_S = 10**9, 10**12
# A turn of a conversation as ShareGPT and as OpenAI spell it.
TURN_KEYS = (("from", "value"), ("role", "content"))
USERS = ("human", "user")
# Roles of messages that hold text alone.
ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True)
class Format:
    """A format of files, told by its keys.

    Attributes:
        prompts: Reader of the prompt by its key; a record has exactly one of these keys.
        limits: Keys of the answer's limit; a record has at most one, and a record of lengths has one.
        marks: Keys that every record has and that tell the format from others.
        instant: Key of the arrival.
        ignored: Keys that cannot change the work.
    """

    name: str
    prompts: Mapping[str, Reader]
    limits: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    instant: str | None = None
    ignored: tuple[str, ...] = ()

    @cached_property
    def needed(self) -> frozenset[str]:
        """Keys that every record has."""
        alone = self.prompts if len(self.prompts) == 1 else ()
        return frozenset((*alone, *self.marks, *(self.limits if tokens in self.prompts.values() else ())))

    @cached_property
    def keys(self) -> frozenset[str]:
        """Every key that a record may have."""
        instant = (self.instant,) if self.instant else ()
        return frozenset({*self.prompts, *self.limits, *self.marks, *self.ignored, *instant})

    def prompt_and_limit(self, present: Collection[str], where: str) -> tuple[str, str | None]:
        """Return which of a record's keys holds the prompt, and which the answer's limit.

        Raises:
            ConfigError: The keys are not the format's.
        """
        if unknown := sorted(set(present) - self.keys):
            known = ", ".join(sorted(self.keys))
            raise ConfigError(f"{where}: unknown key {short(unknown[0])!r}", f"known are {known} ({self.name})")
        if lacking := sorted(self.needed - set(present)):
            raise ConfigError(f"{where}: has none of {', '.join(lacking)}, which each record of {self.name} needs")
        prompts, limits = ([key for key in keys if key in present] for keys in (self.prompts, self.limits))
        if len(prompts) != 1 or len(limits) > 1:
            one = " and ".join(sorted(self.prompts) if len(prompts) != 1 else limits)
            raise ConfigError(f"{where}: give exactly one of {one}, not {sorted(present)}")
        return prompts[0], limits[0] if limits else None


def recognised(present: Collection[str], where: str) -> Format:
    """Return the format whose keys a file's first record has.

    Raises:
        ConfigError: No format has all of them; the message is about the nearest one.
    """
    keys = set(present)
    # Highest for a format that has all of the keys and lacks none.
    nearest = max(FORMATS, key=lambda form: 2 * len(keys & form.keys) - len(form.needed - keys))
    if keys and not keys & nearest.keys:
        what = f"{where}: {short(', '.join(sorted(keys)))} are keys of no known format"
        known = ", ".join(form.name for form in FORMATS)
        raise ConfigError(f"{what}: {known}", 'write {"prompt": "..."} or {"messages": [...]}')
    nearest.prompt_and_limit(keys, where)
    return nearest


def text(value: object, where: str, key: str) -> str:
    """Return a prompt of text.

    Raises:
        ConfigError: It is no text, blank, or no Unicode.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{where}: {key} is {short(value) or 'empty'}", "it must be a text that is not blank")
    if half := SURROGATE.search(value):
        raise ConfigError(f"{where}: {key} holds {short(half[0])}, half a surrogate pair", "write whole characters")
    return value


def ids(value: object, where: str, key: str) -> Ids:
    """Return a prompt of token ids.

    Raises:
        ConfigError: It is no list of them.
    """
    if not isinstance(value, list) or not value or not all(is_int(token) and 0 <= token < 2**32 for token in value):
        raise ConfigError(f"{where}: {key} is {short(value)}", "it must be a list of whole numbers from 0 to 2³² - 1")
    return array("I", value)


def tokens(value: object, where: str, key: str) -> int:
    """Return a number of tokens.

    Raises:
        ConfigError: It is no whole number from 1.
    """
    if not is_int(value) or not 1 <= value < MOST_TOKENS:
        raise ConfigError(
            f"{where}: {key} is {short(value)}", "it must be a whole number from 1 (leave out what failed)"
        )
    return value


def messages(value: object, where: str, key: str) -> str | Chat:
    """Return the messages of a chat completion; a single message of a user is a text.

    Raises:
        ConfigError: A message is of an unknown role or is no text, or the last message is not a user's.
    """
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        raise ConfigError(f"{where}: {key} is {short(value)}", "it must be a list of messages")
    roles = [message.get("role") for message in value]
    if unknown := [role for role in roles if role not in ROLES]:
        raise ConfigError(f"{where}: {key} have the role {short(unknown[0])}", f"known are {', '.join(ROLES)}")
    if roles[-1] != "user":
        raise ConfigError(f"{where}: the last of {key} is of {roles[-1]}", "it must be a user's (leave out the answer)")
    chat = tuple((role, _content(message, TURN_KEYS[1], where)) for role, message in zip(roles, value, strict=True))
    return chat if len(chat) > 1 else chat[0][1]


def first_turn(value: object, where: str, key: str) -> str | None:
    """Return what a user says at the start of a conversation; None where no text of a user stands there.

    Raises:
        ConfigError: It is no conversation.
    """
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        raise ConfigError(f"{where}: {key} is {short(value)}", "it must be a list of turns")
    turn = value[0] if value else {}
    speaker, said = TURN_KEYS[1] if "role" in turn else TURN_KEYS[0]
    # Files of ShareGPT begin in the middle of a conversation, with a system's turn or with nothing.
    if turn.get(speaker) not in USERS or not str(turn.get(said)).strip():
        return None
    return _content(turn, (speaker, said), where)


def _content(message: Mapping[str, Any], names: tuple[str, str], where: str) -> str:
    if unknown := sorted(message.keys() - {*names}):
        raise ConfigError(
            f"{where}: unknown key {short(unknown[0])!r} in a message",
            f"known are {', '.join(names)}",
            cause=Cause.UNKNOWN_SETTING,
        )
    return text(message.get(names[1]), where, names[1])


def instant(value: object, where: str, key: str) -> int:
    """Return when a request came, in ns since any epoch, of a number of seconds.

    Raises:
        ConfigError: It is no such number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MOST_S:
        raise ConfigError(f"{where}: {key} is {short(value)}", "it must be a number of seconds")
    return round(value * NS_PER_S)


def is_int(value: object) -> TypeGuard[int]:
    """Return whether a JSON value is a whole number; True is an int to Python only."""
    return isinstance(value, int) and not isinstance(value, bool)


def short(value: object, *, quoted: bool = False) -> str:
    """Return what a file holds, in one line of at most 60 characters; a text as it is unless `quoted`."""
    plain = value if isinstance(value, str) and value.isprintable() and not quoted else json.dumps(value)
    return plain if len(plain) <= 60 else f"{plain[:57]}..."


# Sources: datasets of vllm-project/vllm (benchmarks/datasets.py); OpenAI's reference of chat completions.
FORMATS = (
    Format("wattdock's prompts", {"prompt": text, "token_ids": ids}, ("max_output_tokens",)),
    Format("wattdock's lengths", {"input_tokens": tokens}, ("output_tokens",), instant="arrival_s"),
    Format("vLLM's custom data set", {"prompt": text}, ("output_tokens",), marks=("output_tokens",)),
    Format("ShareGPT", {"conversations": first_turn, "conversation": first_turn}, ignored=("id",)),
    Format(
        *("OpenAI messages", {"messages": messages}, ("max_tokens", "max_completion_tokens")),
        ignored=("model", "user", "metadata", "stream"),
    ),
)
