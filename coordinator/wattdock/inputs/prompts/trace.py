"""Rows of a trace of requests: lengths of prompt and answer, and when each came, under the names that traces use.

Source: columns of BurstGPT (seconds), of the Azure LLM inference traces of 2023 and 2024 (dates), of Mooncake's traces
(milliseconds), in this order behind wattdock's own.
"""

from __future__ import annotations

import csv
import json
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

INPUT = ("input_tokens", "Request tokens", "ContextTokens", "input_length")
OUTPUT = ("output_tokens", "Response tokens", "GeneratedTokens", "output_length")
INSTANT = ("arrival_s", "Timestamp", "TIMESTAMP", "timestamp")
TRACE_KEYS = {*INPUT, *OUTPUT, *INSTANT}
UNIT_S = {"timestamp": 1e-3}
# Digits of a count, and seconds since any epoch.
MOST_DIGITS, MOST_S = 9, 1e12


def csv_records(lines: Sequence[tuple[int, str]], source: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row below the header, by column, with its line's number.

    Raises:
        ConfigError: A line is no CSV.
    """
    try:
        rows = csv.reader(line for _, line in lines)
        header = [name.strip() for name in next(rows, [])]
        for (number, _), row in zip(lines[1:], rows, strict=False):
            yield number, dict(zip(header, row, strict=False))
    except csv.Error as error:
        raise ConfigError(f"{source}: not CSV ({error})") from error


def trace_row(record: Mapping[str, object], where: str) -> tuple[int, int, float | None]:
    """Return prompt tokens, answer tokens and the arrival in seconds, None without one, of a row by column.

    Raises:
        ConfigError: Names file, line, column and what it holds.
    """
    names = [next((name for name in known if name in record), None) for known in (INPUT, OUTPUT, INSTANT)]
    for name, known in zip(names[:2], (INPUT, OUTPUT), strict=True):
        if name is None:
            raise ConfigError(f"{where}: has none of {', '.join(known)}, one of which must name its tokens")
    prompt, answer, instant = names
    return (
        _tokens(record, prompt or "", where),
        _tokens(record, answer or "", where),
        _seconds(record, instant, where) if instant else None,
    )


def _tokens(record: Mapping[str, object], name: str, where: str) -> int:
    text = str(record[name]).strip()
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and int(text) >= 1):
        raise ConfigError(f"{where}: {name} is {short(text)}; it must be a whole number from 1 (leave out what failed)")
    return int(text)


def _seconds(record: Mapping[str, object], name: str, where: str) -> float:
    text = str(record[name]).strip()
    try:
        if name == "TIMESTAMP":
            date = datetime.fromisoformat(text)
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        at_s = float(text) * UNIT_S.get(name, 1.0)
    except (ValueError, OverflowError):
        at_s = math.nan
    if not abs(at_s) < MOST_S:
        raise ConfigError(f"{where}: {name} is {short(text)}, which is no instant")
    return at_s


def short(value: object) -> str:
    """Return what a file holds in at most 60 characters, for a message."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
