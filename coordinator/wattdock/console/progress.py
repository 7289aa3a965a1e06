"""Progress of a measurement on standard error, for people or programs; results go to standard output."""

from __future__ import annotations

import math
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from wattdock.output import one_line, say, unguarded
from wattdock.study import RunState, events
from wattdock.text import amount, json_text, pluralize, significant, singular

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live as InPlace

__all__ = ["Progress", "progress_for"]

# A line for each heartbeat would drown a log file.
PLAIN_INTERVAL_S = 5.0
# Share of the CPUs used by others from which a pass's line names it; half of the audit's limit.
SHARE_TOLD = 0.05


class Progress:
    """A consumer of events that shows nothing."""

    def __call__(self, event: events.Event) -> None:
        """Show an event."""

    def say(self, line: str) -> None:
        """Show a line."""

    def show(self, line: str, table: RenderableType, /) -> None:
        """Show a state in place of the one before: its table on a terminal, else a line."""

    def close(self) -> None:
        """Remove the line that changes in place, if there is any."""


class Plain(Progress):
    """Lines for a log file or a pipe, within a pass at least `interval_s` apart."""

    def __init__(self, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self._interval_s, self._last_s = interval_s, 0.0
        self._state = RunState()

    def __call__(self, event: events.Event) -> None:
        """Print an event, unless `describe` has no words for it."""
        self._state.on(event, time.monotonic())
        if isinstance(event, events.TokensSeen):
            self._show_pass(pass_text(self._state))
        elif isinstance(event, events.OutputSeen):
            self.close()
            with suppress(BrokenPipeError):
                # As the command wrote it. Standard output is the result's.
                unguarded(sys.stderr).write(event.text)
        elif isinstance(event, events.UnexpectedError):
            for line in event.traceback.splitlines():
                self.say(line)
        elif text := describe(event):
            self.say(text)

    def say(self, line: str) -> None:
        """Print one line; a closed pipe does not end the measurement."""
        with suppress(BrokenPipeError):
            say(line, err=True)

    def show(self, line: str, _: RenderableType, /) -> None:
        """Print the line."""
        self.say(line)

    def _show_pass(self, text: str) -> None:
        if time.monotonic() - self._last_s >= self._interval_s:
            self._last_s = time.monotonic()
            self.say(f"  {text}")


class Live(Plain):
    """A terminal: below its lines one that changes in place, for as long as a pass is under way."""

    def __init__(self) -> None:
        super().__init__()
        self._panel: InPlace | None = None

    def __call__(self, event: events.Event) -> None:
        """Print an event above the pass, or show how that goes on."""
        super().__call__(event)
        if not self._state.stage:
            self.close()

    def say(self, line: str) -> None:
        """Print one line above those that change."""
        self.close()
        super().say(line)

    def close(self) -> None:
        """Remove the lines that change."""
        with suppress(BrokenPipeError):
            if self._panel:
                self._panel.stop()
        self._panel = None

    def _show_pass(self, text: str) -> None:
        from rich.text import Text

        self.show(text, Text(text))

    def show(self, _: str, table: RenderableType, /) -> None:
        """Show the table below the lines."""
        from rich.console import Console
        from rich.live import Live as InPlace

        with suppress(BrokenPipeError):
            if self._panel is None:
                console = Console(file=unguarded(sys.stderr))
                how: dict[str, Any] = {"redirect_stdout": False, "redirect_stderr": False, "transient": True}
                self._panel = InPlace(console=console, auto_refresh=False, **how)
                self._panel.start()
            self._panel.update(table, refresh=True)


class JsonLines(Plain):
    """One JSON object per event: its name, the time, and its values."""

    def __call__(self, event: events.Event) -> None:
        """Print the event."""
        super().say(json_text(events.as_line(event), default=str))

    def say(self, line: str) -> None:
        """Print a line as a note."""
        self(events.Note(line))


def progress_for(*, quiet: bool, json_lines: bool = False) -> Progress:
    """Return the progress that fits standard error: a terminal, a notebook, a log file, or a program."""
    if quiet:
        return Progress()
    if json_lines:
        return JsonLines()
    ipython = sys.modules.get("IPython")
    if ipython and hasattr(ipython.get_ipython(), "kernel"):
        # The output of a notebook's cell is kept, whole, in its file.
        return Plain(interval_s=math.inf)
    return Live() if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else Plain()


def describe(event: events.Event) -> str:
    """Return an event in words; empty if people need not see it."""
    match event:
        case events.Note():
            return event.text
        case events.StopAsked():
            return "interrupted: stops after this pass; Ctrl-C again stops now"
        case events.StudyStarted() if event.resumed is not None:
            done = f"{event.study_id}: {pluralize(event.done, 'experiment')} done before"
            begun = done if event.resumed else f"nothing to resume, begun as {event.study_id}"
            return f"{begun}; left: {_remaining(event)}"
        case events.IdleStarted():
            return f"{event.span}: {event.duration_s:g} s without work"
        case events.RunnerReady():
            return f"runner: {event.framework} {event.framework_version}, Python {event.python_version}"
        case events.Loading():
            return f"  {event.stage}" if event.stage else f"loading {event.model}"
        case events.RestartStarted():
            restart = f"restart {event.restart} of {event.restarts}" if event.restarts > 1 else "begins"
            return f"{event.experiment}: {restart} (left: {_remaining(event)})"
        case events.PassFinished():
            share = event.cpu_others_share or 0.0
            others = f"; others used {share:.0%} of the CPUs" if share >= SHARE_TOLD else ""
            return f"  {event.stage}: {amount(event.output_tokens, event.unit)} in {event.duration_s:.2f} s{others}"
        case events.StudyLeftUnfinished():
            return f"not begun: {pluralize(event.not_begun, 'experiment')}; continue with --resume or --retry-failed"
        case events.ExperimentFailed():
            # The command's last lines hold the error.
            return f"{event.experiment}: failed in {event.stage}"
        case events.ResultStored():
            return f"{event.experiment}: {event.status}, stored in {event.folder}"
    return ""


def pass_text(state: RunState) -> str:
    """Return the pass under way: share, seconds, work so far and its rate, power of the GPUs in use, J per unit."""
    parts = [] if state.share is None else [f"{state.share:.0%}"]
    if state.left_s is not None:
        parts.append(f"{state.left_s:.0f} s left" if state.left_s else "last requests")
    # A static batch counts sequences that have ended until its end.
    least = "≤ " if state.unit == "tokens" else ""
    parts += [f"{state.elapsed_s:.0f} s", f"{least}{state.output_tokens:,} {state.unit} so far"]
    if per_s := state.tokens_per_s:
        parts.append(f"{per_s:,.{0 if per_s >= 100 else 1}f} {state.unit}/s")
    if state.power_w is not None:
        parts.append(f"{state.power_w:,.0f} W")
    if state.joules_per_token:
        parts.append(f"{significant(state.joules_per_token)} J/{singular(state.unit)} so far")
    return f"{one_line(state.stage)}: {', '.join(parts)}"


def _remaining(event: events.StudyStarted | events.RestartStarted) -> str:
    return f"{event.passes_left} of {pluralize(event.passes, 'pass', 'passes')}, {event.time_left}"
