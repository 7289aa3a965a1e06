"""Recorded restarts, and made-up ones, merge to the results that they merged to before.

What they must merge to comes from the code of the day on which `expected/` was written, so that a change shows, and
does not show that either value is right. Where one is meant, `WATTDOCK_GOLDEN=write` writes the files anew, and their
diff belongs to the change.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from golden.replay import differences, flatten, load, merged, names, write
from golden.scenes import KINDS, scene

from wattdock.audit import audited

if TYPE_CHECKING:
    from collections.abc import Callable

WRITES = os.environ.get("WATTDOCK_GOLDEN") == "write"


def recorded(name: str) -> dict[str, Any]:
    case = load(name)
    return merged(case.facts, case.restarts)


def made_up(kind: str) -> dict[str, Any]:
    plain: dict[str, Any] = audited(*scene(kind)).model_dump(mode="json", by_alias=True)
    return plain


CASES: list[tuple[str, Callable[[str], dict[str, Any]]]] = [
    *((name, recorded) for name in names()),
    *((f"scene-{kind}", lambda name: made_up(name.removeprefix("scene-"))) for kind in KINDS),
]


@pytest.mark.parametrize(("name", "make"), CASES, ids=[name for name, _ in CASES])
def test_restarts_merge_to_the_same_figures_and_verdict(name: str, make: Callable[[str], dict[str, Any]]) -> None:
    """No path is missing, none is new, and each value is the same."""
    result = make(name)
    if WRITES:
        write(name, result)
    assert differences(name, result) == []


def test_what_is_changed_missing_or_new_is_told() -> None:
    """One more digit is a difference, and so is a figure that nobody recorded."""
    name = names()[0]
    result = recorded(name)
    result["performance"]["duration_s"] *= 1 + 1e-11
    result["procedure"]["runners_per_restart"] = 2
    result["procedure"]["more"] = result["energy"].pop("total_j")
    paths = [line.partition(":")[0] for line in differences(name, result)]
    assert paths == ["energy.total_j", "performance.duration_s", "procedure.more", "procedure.runners_per_restart"]
    assert flatten({"a": [{"b": json.loads("1.0")}], "c": []}) == {"a.0.b": 1.0, "c": []}
