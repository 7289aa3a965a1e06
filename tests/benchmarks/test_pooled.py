"""Several runs of one comparison, judged as one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pooled import main, pooled

from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def run(*values: float, planned: int | None = None, limit: float = 0.995, on: str = "an engine") -> dict[str, Any]:
    """One run of a comparison with these log ratios, and a second quantity without a cost."""
    claims = {
        what: {"limit": limit, "planned": planned or len(values), "log_ratios": list(seen)}
        for what, seen in (("throughput", values), ("latency", [1e-4 * value for value in values]))
    }
    seen = {"on": on, "requests": 1, "claims": claims, "seconds": []}
    return {"command": "c", "revision": "r", "machine": "m", "comparisons": {"meter": seen}}


SHORT = [run(0.0035, -0.0045), run(-0.004, 0.004), run(0.001, -0.001), run(-0.002, 0.002)]


def test_runs_that_resolve_nothing_alone_resolve_together() -> None:
    """The bound is over all quadruples of all of them, of each quantity by itself."""
    assert "unresolved" in {pooled([one])["meter"][0].verdict for one in SHORT}
    throughput, latency = pooled(SHORT)["meter"]
    assert (throughput.seen.n if throughput.seen else 0, throughput.verdict) == (8, "holds")
    assert latency.log_ratios == [1e-4 * value for value in throughput.log_ratios]


def test_a_run_cut_short_leaves_the_whole_unresolved() -> None:
    """However good the rest is."""
    assert pooled([run(0.0, -1e-4, 1e-4), run(0.0, 0.0, planned=3)])["meter"][0].verdict == "unresolved"


def test_a_run_that_shows_nothing_leaves_the_whole_unresolved() -> None:
    """It was planned, so it cannot be left out either."""
    sound, short = run(0.0, -1e-4, 1e-4), run(0.0, 1e-4)
    short["comparisons"]["meter"]["claims"]["throughput"]["void"] = "a block took 9.8 s, less than 10"
    throughput, latency = pooled([sound, short])["meter"]
    assert (throughput.verdict, latency.verdict) == ("unresolved", "holds")


@pytest.mark.parametrize("other", [run(0.0, limit=0.998), run(0.0, on="another engine")])
def test_runs_of_different_comparisons_are_refused(other: dict[str, Any]) -> None:
    """Another limit is another claim, and another engine or length another cost."""
    with pytest.raises(ConfigError, match="not runs of one comparison"):
        pooled([run(0.0), other])


def test_a_run_counts_once() -> None:
    """Its values twice would make the bound better for nothing."""
    with pytest.raises(ConfigError, match="the same run twice"):
        pooled([SHORT[0], SHORT[1], SHORT[0]])


@pytest.mark.parametrize(
    ("text", "code"), [(json.dumps(run(0.0, -1e-4, 1e-4)), 0), (json.dumps(run(0.1, -0.1)), 9), ("{}", 2), ("no", 2)]
)
def test_the_exit_code_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int) -> None:
    """And a file that is something else is one line."""
    (tmp_path / "passes.json").write_text(text)
    monkeypatch.setattr("sys.argv", ["pooled.py", str(tmp_path / "passes.json")])
    assert main() == code
