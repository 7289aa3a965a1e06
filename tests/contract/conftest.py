"""A runner of each backend for the contract test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from contract.subjects import SUBJECTS, Subject

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Runner
    from contract.shared_runners import SharedRunners


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda subject: subject.name)
def subject(request: pytest.FixtureRequest) -> Subject:
    """Return one backend, or skip where its environment has not been made."""
    chosen: Subject = request.param
    if not chosen.python.exists():
        pytest.skip(f"no {chosen.name} environment at {chosen.python}")
    return chosen


@pytest.fixture
def engine(subject: Subject) -> Subject:
    """Return a backend that has an engine, or skip."""
    if subject.name == "fake":
        pytest.skip("the fake backend has no model")
    return subject


@pytest.fixture
def idle_runner(runners: SharedRunners, subject: Subject) -> Runner:
    """Return a runner that has nothing loaded; before the first load, it never had."""
    return runners.bare(subject.name)


@pytest.fixture
def runner(runners: SharedRunners, subject: Subject, model_path: Path) -> Runner:
    """Return the same runner with the small model loaded."""
    return runners.loaded(subject.name, model_path, **subject.load_fields)[0]


@pytest.fixture
def loaded_runner(runners: SharedRunners, subject: Subject, model_path: Path) -> Runner:
    """Return the same runner with whatever model it has, and the small one where it has none."""
    running = runners.running(subject.name)
    return running if running.model else runners.loaded(subject.name, model_path, **subject.load_fields)[0]
