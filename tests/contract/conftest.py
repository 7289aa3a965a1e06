"""One loaded runner per backend for the whole contract test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import Runner, running
from contract.subjects import SUBJECTS, Subject, write_config

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with config.json only."""
    return write_config(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda subject: subject.name)
def subject(request: pytest.FixtureRequest) -> Subject:
    """Return one backend, or skip where its environment has not been made."""
    chosen: Subject = request.param
    if not Path(chosen.python).exists():
        pytest.skip(f"no {chosen.name} environment at {chosen.python}")
    return chosen


@pytest.fixture
def engine(subject: Subject) -> Subject:
    """Return a backend that has an engine, or skip."""
    if subject.name == "fake":
        pytest.skip("the fake backend has no model")
    return subject


@pytest.fixture(scope="module")
def stand_in(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Return the folder with what stands in for an engine, or None."""
    return subject.stand_in(tmp_path_factory.mktemp("stand-in")) if subject.stand_in else None


@pytest.fixture(scope="module")
def idle_runner(subject: Subject, stand_in: Path | None) -> Iterator[Runner]:
    """Return a runner that has not loaded anything."""
    with running(subject.name, subject.folder, Path(subject.python), stand_in=stand_in) as runner:
        yield runner


@pytest.fixture(scope="module")
def runner(idle_runner: Runner, subject: Subject, model_path: Path) -> Runner:
    """Return the same runner with the small model loaded."""
    idle_runner.load(model_path, **subject.load_fields)
    return idle_runner
