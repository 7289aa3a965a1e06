"""A command of the user's own in a runner's place: it is started in each restart, and its run is the pass.

Must not know: how what it did is analysed, where its output is shown.
"""

from __future__ import annotations

import codecs
import dataclasses
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np

from wattdock.clock import NS_PER_S, ClockCheck
from wattdock.errors import Cause, RunnerError
from wattdock.execution.failures import MOST_SAID, logged_cause
from wattdock.host import processes
from wattdock.metering import Span
from wattdock.opening import open_data
from wattdock.records import PassRecord, RunnerEnvironment, passes
from wattdock.runner import Marks, RunnerDescription
from wattdock.study import events

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wattdock.execution.context import RunContext
    from wattdock.execution.recording import Recording
    from wattdock.launch import LaunchedRunner, Launcher
    from wattdock.metering import Meter
    from wattdock.planning import ExecutionPlan

# How often it is looked at whether the command has ended, and how often at its marks and its output.
POLL_S, LOOK_S = 0.02, 0.5
# The time between two lists of the GPUs' processes is the run's until then, divided by this.
LISTS_PER_RUN = 50
# Characters of a line without an end in which a step is looked for.
MOST_LINE = 10_000
# Bytes of output that are passed on at once, and characters in which the cause of a failure is looked for.
CHUNK_BYTES = 1 << 16
LINE_END = re.compile(r"\r?\n|\r(?!\Z|\n)")
EXITED_WELL = "exited with code 0"


@dataclass
class CommandRunner:
    """Starts the command of an experiment, watches it, and says what it did.

    Attributes:
        launcher: Starts it.
        log: File of its output.
    """

    launcher: Launcher
    plan: ExecutionPlan
    context: RunContext
    meter: Meter
    log: Path
    _running: LaunchedRunner | None = None

    @property
    def description(self) -> RunnerDescription:
        """What stands in the place of a runner's description of itself."""
        return RunnerDescription("measure", "command", "", "", arrivals=(self.plan.config.workload.loop,))

    @property
    def environment(self) -> RunnerEnvironment:
        """What is known of its environment: the GPUs that it was given."""
        gpus = [gpu.uuid for gpu in self.plan.gpus]
        parallelism = {"kind": "command", "gpus": len(gpus)}
        return RunnerEnvironment(
            visible_gpu_uuids=gpus, used_gpu_uuids=gpus, framework="command", parallelism=parallelism
        )

    def pids(self) -> frozenset[int]:
        """Return its processes; empty while it does not run."""
        return self._running.pids() if self._running else frozenset()

    def check_clock(self) -> ClockCheck:
        """Return the host's clock: processes and containers of this host share it, and marks lie inside the run."""
        return ClockCheck(self.context.machine.clock.identity().boot_id, 0)

    def unload(self) -> None:
        """Do nothing: it has ended."""

    def run(self, recording: Recording) -> PassRecord:
        """Run the command to its end, and return what it did.

        Raises:
            LaunchError: It cannot be started.
            RunnerError: It failed, marks what cannot be, or has marked nothing more for `timeouts.stall_s`.
            KeyboardInterrupt: The run was interrupted.
        """
        clock, stall_s = self.context.machine.clock, recording.config.timeouts.stall_s
        with TemporaryDirectory(dir=self.context.scratch) as folder:
            watch, launch_ns = _Watch(Path(folder), recording, self.log), clock.now_ns()
            with self._launched(recording, Path(folder)) as running:
                # What a keeper or a container takes until the command runs is not the command's.
                start_ns = clock.now_ns()
                before, after = processes.times_around(running.pids(), of_runner=False), None
                look_ns = list_ns = start_ns
                while running.alive():
                    self.context.interrupts.check()
                    clock.sleep(POLL_S)
                    if (now_ns := clock.now_ns()) < look_ns:
                        continue
                    look_ns = now_ns + round(LOOK_S * NS_PER_S)
                    recording.runner_pids |= (pids := running.pids())
                    after = processes.times_around(pids, of_runner=False) or after
                    self._look(watch, start_ns, now_ns)
                    if now_ns > list_ns:
                        # It came onto its GPUs since it was started, and takes and frees memory there.
                        self.meter.note_edge()
                        list_ns = now_ns + (now_ns - start_ns) // LISTS_PER_RUN
                    # A command that marks nothing may be silent for as long as it likes.
                    if watch.marks.latest_ns and now_ns - watch.marks.latest_ns > stall_s * NS_PER_S:
                        said = f"the command has marked nothing more for {stall_s:g} s, and was stopped"
                        raise RunnerError(said, "see timeouts.stall_s", cause=Cause.HANG)
                how, end_ns = running.exit_reason(), running.ended_ns or clock.now_ns()
                span = Span("pass", start_ns, end_ns)
            self._look(watch, start_ns, span.end_ns)
        if not (how or "").startswith(EXITED_WELL):
            cause, line = logged_cause(watch.last_words) or (Cause.COMMAND, "")
            # torchrun's own account of its ranks follows theirs, and is longer than the lines that a row keeps.
            what = f"the command {how}{line and f': {shorten(line, MOST_SAID)}'}"
            raise RunnerError(what, cause=Cause.HOST_MEMORY if running.lacked_memory else cause)
        record = watch.record(span, launch_ns)
        warnings = [f"the command {how}"] * (how != EXITED_WELL) + watch.warnings
        if warnings and recording.runner:
            recording.runner = recording.runner.model_copy(update={"warnings": warnings})
        for warning in warnings:
            self.context.emit(events.Note(warning))
        others = after.others_share_since(before) if after and before else None
        return dataclasses.replace(record, cpu_others_share=others)

    @contextmanager
    def _launched(self, recording: Recording, marks: Path) -> Iterator[LaunchedRunner]:
        context, timeouts = self.context, recording.config.timeouts
        plan = dataclasses.replace(self.plan, config=recording.config)
        spec = plan.command(self.log, context.held, writable=marks, alive_lock=context.scratch)
        self._running = self.launcher(spec)
        try:
            yield self._running
        finally:
            self._running.stop(timeouts.stop_s)

    def _look(self, watch: _Watch, start_ns: int, now_ns: int) -> None:
        """Read marks and output, and pass on what is new."""
        for text in watch.look(now_ns):
            # A command may print faster than its output is passed on.
            self.context.interrupts.check()
            self.context.emit(events.OutputSeen(text))
        elapsed_s = (now_ns - start_ns) / NS_PER_S
        self.context.emit(events.TokensSeen(watch.stage, watch.done, elapsed_s, self.meter.watts(), watch.unit))


class _Watch:
    """Reads what a command marks and prints while it runs.

    Attributes:
        last_words: The end of its output.
    """

    def __init__(self, folder: Path, recording: Recording, log: Path) -> None:
        command = recording.config.command
        assert command is not None
        self.marks, self.stage, self._work, self.unit = Marks(folder), recording.stage, command.work, command.work.unit
        self._step = None if command.step_regex is None else re.compile(command.step_regex)
        self._log, self._line = log, ""
        log.touch()
        with open_data(log) as file:
            # Other experiments of the session may have printed before.
            self._read_bytes = file.seek(0, os.SEEK_END)
        self.last_words = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def done(self) -> int:
        """Work of the unit that counts, so far."""
        return self.marks.units().get(self.unit, 0)

    @property
    def warnings(self) -> list[str]:
        """That `step_regex` is found nowhere in the output."""
        if self._step is None or self.done:
            return []
        regex, ends = self._step.pattern, "; the output's last line is"
        last = next((line for line in reversed(self.last_words.splitlines()) if line.strip()), "")
        found = f"{ends} {shorten(last, MOST_SAID)!r}" if last else "; there is no output"
        return [f"no line of the output matches step_regex {regex!r}, so that no step is counted{found}"]

    def look(self, now_ns: int) -> Iterator[str]:
        """Read marks, and yield what was printed since the last time, in parts.

        Raises:
            RunnerError: There are too many marks.
        """
        self.marks.read()
        with open_data(self._log) as file:
            file.seek(self._read_bytes)
            while chunk := file.read(CHUNK_BYTES):
                self._read_bytes += len(chunk)
                text = self._decoder.decode(chunk)
                self.last_words = (self.last_words + text)[-CHUNK_BYTES:]
                if self._step:
                    # Progress bars end their lines by a carriage return.
                    *lines, self._line = LINE_END.split(self._line[-MOST_LINE:] + text)
                    self._count_steps(lines, now_ns)
                yield text

    def _count_steps(self, lines: Iterable[str], now_ns: int) -> None:
        for line in lines:
            if self._step and self._step.search(line):
                self.marks.add_step(now_ns)

    def record(self, span: Span, launch_ns: int) -> PassRecord:
        """Return the run's record; it may have marked from the instant on that its launch began.

        Raises:
            RunnerError: A mark lies outside the run.
        """
        # The last line may have no end.
        self._count_steps([self._line] if self._line else [], span.end_ns)
        units, series, marked = self.marks.units(), self.marks.series(self.unit), self.marks.marked()
        if self.unit not in units:
            # Only its whole amount is known, if any: it is done where what counts ends.
            ends_ns = [part.spans[-1][1] for part in marked if part.name == self._work.within and part.spans]
            units[self.unit] = self._work.count or int(self.unit == "runs")
            series = passes.TokenSeries(np.array(ends_ns or [span.end_ns]), np.array([units[self.unit]]))
        if self.marks.latest_ns and not launch_ns <= self.marks.first_ns <= self.marks.latest_ns <= span.end_ns:
            raise RunnerError(
                "the command's marks lie outside its run", "it must read this host's CLOCK_MONOTONIC (time.monotonic)"
            )
        return PassRecord(
            span,
            (),
            series,
            units[self.unit],
            None,
            None,
            0,
            units=units,
            marked=marked,
            malformed_marks=self.marks.malformed,
            counting_processes=self.marks.counting(self.unit),
            repeated_ranks=self.marks.repeated(self.unit),
        )
