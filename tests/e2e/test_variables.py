"""Engine settings that come with the environment: stored, shown, told apart, and one set of them in a study."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from command import SMALL

if TYPE_CHECKING:
    from command import Command

TWO, THREE = {"NCCL_NTHREADS": "2", "NCCL_AUTH_OF_MINE": "hidden"}, {"NCCL_NTHREADS": "3"}


def test_engine_settings_of_the_environment_are_stored_shown_and_told_apart(wattdock: Command) -> None:
    """They decide how an engine runs as much as its arguments do."""
    for name, given in (("two", TWO), ("three", THREE)):
        done = wattdock("run", *SMALL, "--output-dir", name, env=given)
        assert done.returncode == 0, done.stderr
    [folder] = (wattdock.folder / "two").glob("2*")
    stored = (folder / "result.json").read_text()
    found = json.loads(stored)["environment"]["variables"]
    assert {name: found[name] for name in TWO} == {"NCCL_NTHREADS": "2", "NCCL_AUTH_OF_MINE": "set"}
    assert "hidden" not in stored
    assert "NCCL_NTHREADS=2" in wattdock("show", folder).stdout
    apart = json.loads(wattdock("compare", "two", "three", "--json").stdout)["differs_in"]
    told = {one["name"]: (one["a"], one["b"]) for one in apart}
    assert told["variable: NCCL_NTHREADS"] == ("2", "3")


def test_a_study_is_not_resumed_under_other_engine_settings(wattdock: Command) -> None:
    """Its row would hold passes of two configurations; taking one away counts, too."""
    assert wattdock("run", *SMALL, env=TWO).returncode == 0
    for given, words in ((THREE, "variables.NCCL_NTHREADS 2 → 3"), ({}, "variables.NCCL_NTHREADS 2 → None")):
        refused = wattdock("run", *SMALL, "--resume", env=given)
        assert refused.returncode == 3, refused.stderr
        assert words in refused.stderr
    assert wattdock("run", *SMALL, "--resume", env=TWO).returncode == 0
