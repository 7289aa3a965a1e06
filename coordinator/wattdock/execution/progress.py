"""What a person sees while something is measured. Every word goes to standard error; results go to standard output."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.status import Status

# A line for each heartbeat would drown a log file.
PLAIN_INTERVAL_S = 5.0


class Progress(Protocol):
    """Where progress is told."""

    def say(self, line: str) -> None:
        """Tell something that stays on the screen."""

    def tick(self, stage: str, *, output_tokens: int, elapsed_s: float, watts: Mapping[str, float | None]) -> None:
        """Tell how a pass is getting on; the next call may overwrite it."""

    def clear(self) -> None:
        """End what `tick` showed."""


class Silent:
    """Tells nothing."""

    def say(self, line: str) -> None:
        """Tell nothing."""

    def tick(self, stage: str, *, output_tokens: int, elapsed_s: float, watts: Mapping[str, float | None]) -> None:
        """Tell nothing."""

    def clear(self) -> None:
        """Do nothing."""


class Plain(Silent):
    """Lines for a log file or a pipe, at most one pass line every few seconds."""

    def __init__(self) -> None:
        self._last_s = 0.0

    def say(self, line: str) -> None:
        """Print one line, unless nobody reads any more: that must not end what is being measured."""
        with suppress(BrokenPipeError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def tick(self, stage: str, *, output_tokens: int, elapsed_s: float, watts: Mapping[str, float | None]) -> None:
        """Print a line, unless the last one is recent."""
        if time.monotonic() - self._last_s >= PLAIN_INTERVAL_S:
            self._last_s = time.monotonic()
            self.say(f"  {stage}: {pass_line(output_tokens, elapsed_s, watts)}")


class Live(Plain):
    """A terminal: one line that changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self._status: Status | None = None

    def say(self, line: str) -> None:
        """Print one line above the one that changes."""
        self.clear()
        super().say(line)

    def tick(self, stage: str, *, output_tokens: int, elapsed_s: float, watts: Mapping[str, float | None]) -> None:
        """Change the line."""
        text = f"{stage}: {pass_line(output_tokens, elapsed_s, watts)}"
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status(text)
            self._status.start()
        self._status.update(text)

    def clear(self) -> None:
        """Take the line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None


def progress_for(*, quiet: bool) -> Progress:
    """Return what fits where standard error leads."""
    if quiet:
        return Silent()
    return Live() if sys.stderr.isatty() else Plain()


def pass_line(output_tokens: int, elapsed_s: float, watts: Mapping[str, float | None]) -> str:
    """Return tokens so far, their rate, and power per GPU."""
    rate = f", {output_tokens / elapsed_s:,.0f} tokens/s" if elapsed_s > 0 else ""
    power = [f"{value:.0f}" for value in watts.values() if value is not None]
    return f"{elapsed_s:.0f} s, {output_tokens:,} tokens{rate}" + (f", {' + '.join(power)} W" if power else "")
