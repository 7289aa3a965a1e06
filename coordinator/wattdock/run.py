"""The loop: for restart → for load group → one attempt at a time → merge → store.

With `attempt`, the only place that makes attempts. A row is stored as soon as its experiment is finished.
"""

from __future__ import annotations

import traceback
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wattdock.attempt import Attempt, Row
from wattdock.errors import ExitCode, StoreError
from wattdock.host.folders import scratch_folder
from wattdock.host.leases import Wanted, held
from wattdock.interrupts import Interrupts
from wattdock.launch.engine import NoContainersError
from wattdock.launch.orphans import reap
from wattdock.merge.result import merge, result_row
from wattdock.plan import load_groups
from wattdock.preflight import preflight, require_still_free, survey
from wattdock.results.result import Failure
from wattdock.results.store import store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wattdock.config.experiment import ExperimentConfig
    from wattdock.preflight import Ready
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

    def __init__(
        self, experiments: Sequence[ExperimentConfig], *, output_dir: Path, home: Path, clean: bool = True
    ) -> None:
        """Check everything that needs no runner.

        Args:
            clean: Remove the containers of coordinators that are gone first: they would be found on the GPUs.

        Raises:
            ConfigError, PreflightError: One of the experiments cannot run here; nothing was started.
            LaunchError: An engine will not remove such a container.
        """
        self._output_dir, self._home = output_dir, home
        self._reaped = _reaped() if clean else ()
        host = survey()
        self.ready = [preflight(one, host, output_dir=output_dir, home=home) for one in experiments]
        self.stored: list[Stored] = []
        self._unstored: list[Row] = []
        self._store_errors: list[StoreError] = []

    def measure(self, progress: Progress) -> None:
        """Measure until all is done, or one has failed under `on_failure: stop`.

        Raises:
            PreflightError: Others measure on this machine, or on the GPUs chosen; nothing was started.
            StoreError: A row could not be written; the message says where it is instead. The others are stored.
            KeyboardInterrupt: As soon as everything measured so far is stored.
        """
        for line in dict.fromkeys(line for one in self.ready for line in (one.decisions, *one.warnings)):
            progress.say(line)
        for name in self._reaped:
            progress.say(f"removed container {name}: the coordinator that started it is gone")
        with scratch_folder() as scratch, Interrupts() as interrupts, ExitStack() as leases:
            with interrupts.allowed():
                lease_fds = leases.enter_context(held(wanted_leases(self.ready), progress.say))
                require_still_free(self.ready)
            rows = [Row(one, scratch / f"row-{number}.log") for number, one in enumerate(self.ready)]
            self._unstored = list(rows)
            try:
                self._attempts(rows, scratch, progress, interrupts, lease_fds)
            finally:
                self._store([row for row in self._unstored if row.restarts], progress)
        if self._store_errors:
            raise self._store_errors[0]

    def _attempts(
        self, rows: list[Row], scratch: Path, progress: Progress, interrupts: Interrupts, lease_fds: tuple[int, ...]
    ) -> None:
        groups = load_groups([row.config for row in rows])
        number = 0
        for restart in range(max(row.config.repeats.restarts for row in rows)):
            for group in groups:
                pending = deque(rows[position] for position in group if rows[position].wants(restart))
                while pending:
                    number += 1
                    log = scratch / f"{number}.log"
                    attempt = Attempt(
                        pending, restart, home=self._home, log=log, progress=progress, lease_fds=lease_fds
                    )
                    attempt.run(interrupts)
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


def _reaped() -> tuple[str, ...]:
    """Remove what dead coordinators left, where an engine answers; return the containers' names."""
    with suppress(NoContainersError):
        return reap().removed
    return ()


def wanted_leases(ready: Sequence[Ready]) -> Wanted:
    """Return what these experiments need for themselves, all of it for the whole run."""
    alone = any(one.config.exclusive == "machine" for one in ready)
    more = f" and {len(ready) - 1} more" if len(ready) > 1 else ""
    return Wanted(
        names=tuple(dict.fromkeys(name for one in ready for name in one.lease_names)),
        exclusive="machine" if alone else "gpus",
        experiment=ready[0].config.label + more,
        wait_s=max(one.config.wait_s for one in ready),
    )


def _merged(row: Row, progress: Progress) -> ExperimentResult:
    started_utc = row.started_utc or datetime.now(UTC)
    try:
        return merge(row.config, row.restarts, row.ready, row.model, started_utc=started_utc)
    except Exception as error:  # noqa: BLE001  (the raw timeline and requests are still worth storing)
        progress.say(traceback.format_exc())
        message = f"a bug in wattdock: {error}; timeline.parquet and requests.parquet hold what was measured"
        failure = Failure(kind=type(error).__name__, message=message, stage="merge", exit_code=int(ExitCode.BUG))
        return result_row(row.config, failure, started_utc=started_utc)
