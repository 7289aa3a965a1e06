"""Recorded restarts merge to the results that they merged to when they were recorded."""

from __future__ import annotations

import pytest
from golden.replay import differences, flatten, load, merged, names, renamed


@pytest.mark.parametrize("name", names())
def test_recorded_restarts_merge_to_the_same_figures_and_verdict(name: str) -> None:
    """No path is missing, none is new, and each value is the same to the last digit."""
    case = load(name)
    result = merged(case.facts, case.restarts)
    checks = [check for check in result["audit"]["checks"] if check["status"] in ("fail", "unknown")]
    assert result["audit"].pop("reasons") == [f"{check['name']}: {check['figure']}" for check in checks]
    assert differences(name, case, result) == []


def test_what_is_changed_missing_or_new_is_told_and_a_new_name_is_followed() -> None:
    """One more digit is a difference, and so is a figure that nobody recorded."""
    name = names()[0]
    case = load(name)
    result = merged(case.facts, case.restarts)
    del result["audit"]["reasons"]
    result["performance"]["duration_s"] *= 1 + 1e-15
    result["procedure"]["runners_per_restart"] = 2
    result["statistics"]["more"] = result["energy"].pop("energy_boundary")
    paths = [line.partition(":")[0] for line in differences(name, case, result)]
    assert paths == [
        "energy.energy_boundary",
        "performance.duration_s",
        "procedure.runners_per_restart",
        "statistics.more",
    ]
    old = flatten({"a": [{"b": 1.0}, {"b": 2.0}], "c": {"d": None, "e": []}})
    assert renamed(old, {"a.*.b": "x.b.*", "c.d": None, "c.**": "**"}) == {"x.b.0": 1.0, "x.b.1": 2.0, "e": []}
