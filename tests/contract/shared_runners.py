"""A runner process per backend for all tests of a session, and what it has loaded from one test to the next."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import Runner, load_request, running
from contract.subjects import SUBJECTS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from wattdock_proto.v1 import runner_pb2 as pb

BY_NAME = {subject.name: subject for subject in SUBJECTS}


class SharedRunners:
    """Starts a backend's process when a test first wants it, and again where a test ended it.

    Args:
        ends: Ends the processes when it is closed.
        scratch: A folder for what stands in for engines.
    """

    def __init__(self, ends: ExitStack, scratch: Path) -> None:
        self._scratch = scratch
        self._ends: dict[str, ExitStack] = defaultdict(lambda: ends.enter_context(ExitStack()))
        self._runners: dict[str, Runner] = {}

    def bare(self, backend: str) -> Runner:
        """Return the backend's runner with nothing loaded; skip where its environment has not been made."""
        runner = self.running(backend)
        if runner.model:
            runner.unload()
        return runner

    def loaded(self, backend: str, model_path: Path, **fields: Any) -> tuple[Runner, pb.Loaded]:
        """Return the backend's runner with this load, and what it says of it; a load that it has is not repeated."""
        runner = self.running(backend)
        if runner.model is None or runner.model[0] != load_request(model_path, **fields):
            self.bare(backend).load(model_path, **fields)
        assert runner.model is not None
        return runner, runner.model[1]

    def stand_in(self, backend: str) -> Path:
        """Return the folder with what stands in for a backend's engine."""
        return self._scratch / backend

    def running(self, backend: str) -> Runner:
        """Return the backend's runner with what it has loaded."""
        runner = self._runners.get(backend)
        if runner is None or runner.process.poll() is not None:
            # What it left ends with it: its number may be another's later.
            self._ends[backend].close()
            runner = self._runners[backend] = self._ends[backend].enter_context(self._process(backend))
        return runner

    def _process(self, backend: str) -> AbstractContextManager[Runner]:
        subject = BY_NAME[backend]
        if not subject.python.exists():
            pytest.skip(f"no {backend} environment at {subject.python}")
        stand_in = self.stand_in(backend) if subject.stand_in else None
        if subject.stand_in and stand_in and not stand_in.exists():
            subject.stand_in(stand_in)
        return running(subject.backend, subject.folder, subject.python, stand_in=stand_in, **subject.variables)
