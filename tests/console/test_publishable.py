"""`--publishable`: the settings that a figure needs, and what is left for a person to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wattdock.errors import ExitCode

if TYPE_CHECKING:
    from conftest import Called


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_study_that_cannot_be_publishable_here_is_told_what_is_left_to_do(called: Called, verb: str) -> None:
    """One line each for what the study sets too loosely, the model, a GPU and the image; then the refusal."""
    Path("x.yaml").write_text("backend: fake\nmodel: shape:tiny-llama\nrepeats: {restarts: 1}\n")
    done = called(verb, "--publishable", "x.yaml")
    assert done.returncode == ExitCode.PREFLIGHT
    laid, *left, refusal = done.stderr.splitlines()
    assert {"warmup.profile=lead-in", "repeats.passes=1", "workload.min_duration_s=40"} <= {*re.split(r",? ", laid)}
    subjects = [line.removeprefix("left to do: ").partition(":")[0] for line in left]
    assert [subject for subject in subjects if subject != "GPU"] == ["settings", "model", "software"]
    assert "repeats.restarts=1" in left[0]
    assert "shape:tiny-llama" in left[1]
    assert refusal.startswith("wattdock: ")
    assert not Path("results").exists()


def test_an_interpreter_of_ones_own_cannot_be_asked_for_together_with_publication(called: Called) -> None:
    """Nobody else could get what ran."""
    done = called("run", "--publishable", "--launcher", "process", "--runner-python", "python3")
    assert done.returncode == ExitCode.CONFIG
    assert "--publishable" in done.stderr
