"""The loop: for restart → for load group → one attempt at a time → merge → store.

With `attempt`, the only place that makes attempts. A row is stored as soon as its experiment is finished.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.attempt import Row, attempt
from wattdock.merge.result import merge
from wattdock.plan import load_groups
from wattdock.preflight import preflight
from wattdock.results.store import store

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    def measure(self, progress: Progress) -> None:
        """Measure until all is done, or one has failed under `on_failure: stop`.

        Raises:
            StoreError: A row could not be written; the message says where it is instead.
            KeyboardInterrupt: As soon as everything measured so far is stored.
        """
        for line in dict.fromkeys(
            f"{one.launch_line}; meter: {one.meter_name} ({one.meter_reason})" for one in self.ready
        ):
            progress.say(line)
        with tempfile.TemporaryDirectory(prefix="wattdock-run-") as scratch:
            rows = [Row(one, Path(scratch) / f"row-{number}.log") for number, one in enumerate(self.ready)]
            unstored = list(rows)
            try:
                self._attempts(rows, unstored, Path(scratch), progress)
            finally:
                self._finish_all([row for row in unstored if row.restarts], progress)

    def _attempts(self, rows: list[Row], unstored: list[Row], scratch: Path, progress: Progress) -> None:
        groups = load_groups([row.config for row in rows])
        number = 0
        for restart in range(max(row.config.repeats.restarts for row in rows)):
            for group in groups:
                pending = deque(rows[position] for position in group if rows[position].wants(restart))
                while pending:
                    number += 1
                    attempt(pending, restart, home=self._home, log=scratch / f"{number}.log", progress=progress)
                    finished = [row for row in unstored if row.restarts and not row.wants(len(row.restarts))]
                    for row in finished:
                        unstored.remove(row)
                    self._finish_all(finished, progress)
                    if any(row.failed and row.config.on_failure == "stop" for row in rows):
                        return

    def _finish_all(self, rows: Sequence[Row], progress: Progress) -> None:
        """Merge and store every row, even where one of them cannot be stored."""
        with contextlib.ExitStack() as finishing:
            for row in reversed(rows):
                finishing.callback(self._finish, row, progress)

    def _finish(self, row: Row, progress: Progress) -> None:
        started_utc = row.started_utc or datetime.now(UTC)
        result = merge(row.config, row.restarts, row.ready, row.model, started_utc=started_utc)
        folder = store(result, row.restarts, log=row.log_path, output_dir=self._output_dir)
        self.stored.append(Stored(result, folder))
        progress.say(f"{row.config.label}: {result.status}, stored in {folder}")
