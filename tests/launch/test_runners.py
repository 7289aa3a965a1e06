"""Backends are found by their folder, with no list of names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wattdock.errors import ConfigError
from wattdock.launch.runners import REPO, backends, find_runner, runners_path


@pytest.fixture
def more_runners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with one backend and three that are none, named by WATTDOCK_RUNNERS."""
    for module in ("slim/wattdock_slim.py", "wide/wattdock_other.py", "bare/notes.txt", "common/wattdock_runner/x.py"):
        (tmp_path / module).parent.mkdir(parents=True)
        (tmp_path / module).touch()
    monkeypatch.setenv("WATTDOCK_RUNNERS", str(tmp_path))
    return tmp_path


def test_a_folder_with_its_module_is_a_backend(more_runners: Path) -> None:
    """A fourth backend is a folder, nothing to register."""
    assert find_runner("slim") == more_runners / "slim"
    assert {"wide", "bare", "common", "other"}.isdisjoint(backends())


def test_the_project_comes_last(more_runners: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own version of a backend wins over ours."""
    monkeypatch.setenv("WATTDOCK_RUNNERS", os.pathsep.join([str(more_runners), "/absent"]))
    assert runners_path() == (more_runners, Path("/absent"), REPO / "runners")


def test_an_unknown_backend_is_refused_with_the_nearest_name(more_runners: Path) -> None:
    """A slip of the finger costs one line."""
    with pytest.raises(ConfigError, match=r"unknown backend 'slimm' .*did you mean 'slim'\?"):
        find_runner("slimm")


@pytest.mark.parametrize("name", ["../slim", "", "slim/", "."])
def test_a_backend_is_a_name_and_no_path(more_runners: Path, name: str) -> None:
    """What a file says must not reach outside the runners."""
    with pytest.raises(ConfigError, match="unknown backend"):
        find_runner(name)
