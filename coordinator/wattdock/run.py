"""The loop: for restart → for load group → one attempt at a time → merge → store.

With `attempt`, the only place that makes attempts. A row is stored as soon as its experiment is finished.
"""

from __future__ import annotations

import traceback
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wattdock.attempt import Attempt, Row
from wattdock.errors import ExitCode, StoreError
from wattdock.host.folders import scratch_folder
from wattdock.interrupts import Interrupts
from wattdock.launch.orphans import reap
from wattdock.merge.result import merge, unmerged
from wattdock.plan import load_groups
from wattdock.preflight import preflight
from wattdock.results.result import Failure
from wattdock.results.store import store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wattdock.config.experiment import ExperimentConfig
    from wattdock.progress import Progress
    from wattdock.results.result import ExperimentResult


@dataclass(frozen=True)
class Stored:
    """One finished row and the folder that holds it."""

    result: ExperimentResult
    folder: Path


class Run:
    """Measures experiments and stores a row for each.

    Attributes:
        ready: What was decided about each experiment, in the order given.
        stored: The rows so far, in the order in which they were finished; readable at any time, and after any error.
    """

    def __init__(self, experiments: Sequence[ExperimentConfig], *, output_dir: Path, home: Path) -> None:
        """Check everything that needs no runner.

        Raises:
            ConfigError, PreflightError: One of the experiments cannot run here; nothing was started.
        """
        self._output_dir, self._home = output_dir, home
        self.ready = [preflight(one, output_dir=output_dir, home=home) for one in experiments]
        self.stored: list[Stored] = []
        self._unstored: list[Row] = []
        self._store_errors: list[StoreError] = []

    def measure(self, progress: Progress) -> None:
        """Measure until all is done, or one has failed under `on_failure: stop`.

        Raises:
            StoreError: A row could not be written; the message says where it is instead. The others are stored.
            KeyboardInterrupt: As soon as everything measured so far is stored.
        """
        for line in dict.fromkeys(one.decisions for one in self.ready):
            progress.say(line)
        if any(one.launch.containers for one in self.ready):
            for name in reap().removed:
                progress.say(f"removed container {name}: the coordinator that started it is gone")
        with scratch_folder() as scratch, Interrupts() as interrupts:
            rows = [Row(one, scratch / f"row-{number}.log") for number, one in enumerate(self.ready)]
            self._unstored = list(rows)
            try:
                self._attempts(rows, scratch, progress, interrupts)
            finally:
                self._store([row for row in self._unstored if row.restarts], progress)
        if self._store_errors:
            raise self._store_errors[0]

    def _attempts(self, rows: list[Row], scratch: Path, progress: Progress, interrupts: Interrupts) -> None:
        groups = load_groups([row.config for row in rows])
        number = 0
        for restart in range(max(row.config.repeats.restarts for row in rows)):
            for group in groups:
                pending = deque(rows[position] for position in group if rows[position].wants(restart))
                while pending:
                    number += 1
                    log = scratch / f"{number}.log"
                    Attempt(pending, restart, home=self._home, log=log, progress=progress).run(interrupts)
                    finished = [row for row in self._unstored if row.restarts and not row.wants(len(row.restarts))]
                    self._store(finished, progress)
                    if any(row.failed and row.config.on_failure == "stop" for row in rows):
                        return

    def _store(self, rows: list[Row], progress: Progress) -> None:
        """Merge and store every row, even where one of them cannot be stored."""
        for row in rows:
            self._unstored.remove(row)
            result = _merged(row, progress)
            try:
                folder = store(result, row.restarts, log=row.log_path, output_dir=self._output_dir)
            except StoreError as error:
                progress.say(str(error))
                self._store_errors.append(error)
                continue
            self.stored.append(Stored(result, folder))
            progress.say(f"{row.config.label}: {result.status}, stored in {folder}")


def _merged(row: Row, progress: Progress) -> ExperimentResult:
    started_utc = row.started_utc or datetime.now(UTC)
    try:
        return merge(row.config, row.restarts, row.ready, row.model, started_utc=started_utc)
    except Exception as error:  # noqa: BLE001  (the raw timeline and requests are still worth storing)
        progress.say(traceback.format_exc())
        message = f"a bug in wattdock: {error}; timeline.parquet and requests.parquet hold what was measured"
        failure = Failure(kind=type(error).__name__, message=message, stage="merge", exit_code=int(ExitCode.BUG))
        return unmerged(row.config, failure, started_utc=started_utc)
