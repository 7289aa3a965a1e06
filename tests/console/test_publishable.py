"""`--publishable`: the settings that a figure needs, and what is left for a person to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from seams.launch import LockedImage, write_lock

from wattdock.audit import left_to_do
from wattdock.config import load_study
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
    # A checkout with changes of its own adds a line on software.
    assert [subject for subject in dict.fromkeys(subjects) if subject != "GPU"] == ["settings", "model", "software"]
    assert "repeats.restarts=1" in left[0]
    assert "shape:tiny-llama" in left[1]
    assert refusal.startswith("wattdock: ")
    assert not Path("results").exists()


def test_a_command_is_told_in_the_order_of_an_engine_what_is_left_to_do(called: Called) -> None:
    """Settings and what is measured, which a person mends at once, before the machine and the image."""
    study = load_study({"measure": {"command": ["true"]}}, {"repeats.restarts": 1}, publishable=True)
    left, warned = left_to_do(study.experiments, "c0ffee")
    subjects = [line.partition(":")[0] for line in left]
    assert [subject for subject in subjects if subject != "GPU"] == ["settings", "command", "software"]
    assert subjects.index("software") == len(subjects) - 1
    assert warned == []


def test_the_image_that_apptainer_would_start_is_looked_up_in_the_lock_alone(
    called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster has no engine to ask."""
    Path("x.yaml").write_text("backend: fake\nmodel: shape:tiny-llama\nlauncher: apptainer\n")
    monkeypatch.setenv("WATTDOCK_IMAGES_LOCK", "images.lock")
    assert "images.lock names no image for fake" in called("plan", "--publishable", "x.yaml").stderr
    digest = f"sha256:{'d' * 64}"
    image = LockedImage(digest=f"r.example/x@{digest}", base="b", base_digest=digest, revision="c0ffee")
    write_lock(Path("images.lock"), {"fake": image})
    done = called("plan", "--publishable", "x.yaml")
    assert "left to do: model: " in done.stderr
    assert "images.lock" not in done.stderr


def test_an_interpreter_of_ones_own_cannot_be_asked_for_together_with_publication(called: Called) -> None:
    """Nobody else could get what ran."""
    done = called("run", "--publishable", "--launcher", "process", "--runner-python", "python3")
    assert done.returncode == ExitCode.CONFIG
    assert "--publishable" in done.stderr


def test_a_plan_ends_as_the_run_would_where_something_is_left_to_do(called: Called) -> None:
    """So that `plan --publishable x && run --publishable x` measures nothing in vain; also of what nodes measure."""
    Path("x.yaml").write_text("backend: pytorch\nmodel: shape:tiny-llama\nlauncher: process\n")
    done = called("plan", "--publishable", "--on", "slurm", "x.yaml")
    assert done.returncode == ExitCode.NOT_PUBLISHABLE, done.stderr
    assert "#SBATCH --exclusive" in done.stdout
    assert re.fullmatch(
        r"wattdock: not publishable as it is: \d things? left to do, see above", done.stderr.splitlines()[-1]
    )


MODEL = {"id": "owner/model", "revision": "0" * 40}
DIGEST = f"r.example/x@sha256:{'d' * 64}"


@pytest.mark.parametrize(("revision", "is_repeatable"), [("c0ffee", True), ("c0ffee-dirty", False), (None, False)])
@pytest.mark.parametrize(
    "study",
    [
        {"backend": "fake", "model": MODEL, "launcher": "process"},
        {"backend": "fake", "model": MODEL, "launcher": "apptainer"},
        {"measure": {"command": ["true"]}, "container": {"image": DIGEST}},
    ],
)
def test_a_changed_clone_is_told_before_the_run(
    study: dict[str, Any], revision: str | None, is_repeatable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever an engine or a command runs in, wattdock's own code meters and analyses it."""
    image = LockedImage(digest=DIGEST, base="b", base_digest=DIGEST.partition("@")[2], revision="c0ffee")
    write_lock(tmp_path / "images.lock", {"fake": image})
    monkeypatch.setenv("WATTDOCK_IMAGES_LOCK", str(tmp_path / "images.lock"))
    experiments = load_study(study, {}, publishable=True).experiments
    left, warned = left_to_do(experiments, revision, on_nodes=True)
    told = [line for line in left if not line.startswith("command: ")]
    assert (told == [], warned) == (is_repeatable, [])
    assert is_repeatable or "software: wattdock is of no commit, or has changes" in told[0]


def test_a_folders_weights_are_warned_of_before_the_run_as_after_it() -> None:
    """Nothing is left to do: nobody can tell that a folder's weights are trained."""
    study = {"backend": "fake", "model": "./x", "launcher": "process"}
    left, [warned] = left_to_do(load_study(study, {}, publishable=True).experiments, "c0ffee", on_nodes=True)
    assert left == []
    assert warned.startswith("model: x: a local folder's: its digest identifies the weights")
