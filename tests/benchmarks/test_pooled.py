"""Several runs of one comparison, judged as one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pooled import main, pooled

from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def run(*ratios: float, planned: int | None = None, limit: float = 0.995) -> dict[str, Any]:
    """One run whose quadruples have these ratios of A's rate over B's."""
    quadruples = [[["A", 1.0], ["B", ratio], ["B", ratio], ["A", 1.0]] for ratio in ratios]
    seen = {"limit": limit, "planned": planned or len(ratios), "seconds": quadruples}
    return {"command": "c", "revision": "r", "machine": "m", "comparisons": {"a / b": seen}}


def test_runs_that_resolve_nothing_alone_resolve_together() -> None:
    """The bound is over all quadruples of all of them."""
    short = [run(1.0035, 0.9955), run(0.996, 1.004), run(1.001, 0.999), run(0.998, 1.002)]
    assert [claim.verdict for one in short for claim in pooled([one])].count("holds") < len(short)
    (claim,) = pooled(short)
    assert (claim.seen.n if claim.seen else 0, claim.verdict) == (8, "holds")


def test_a_run_cut_short_leaves_the_whole_unresolved() -> None:
    """However good the rest is."""
    (claim,) = pooled([run(1.0, 0.9999, 1.0001), run(1.0, 1.0, planned=3)])
    assert claim.verdict == "unresolved"


def test_runs_of_different_comparisons_are_refused() -> None:
    """Another limit is another claim."""
    with pytest.raises(ConfigError, match="not runs of one comparison"):
        pooled([run(1.0), run(1.0, limit=0.998)])


@pytest.mark.parametrize(("text", "code"), [(json.dumps(run(1.0, 0.9999, 1.0001)), 0), ("{}", 2), ("no", 2)])
def test_the_exit_code_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int) -> None:
    """And a file that is something else is one line."""
    (tmp_path / "passes.json").write_text(text)
    monkeypatch.setattr("sys.argv", ["pooled.py", str(tmp_path / "passes.json")])
    assert main() == code
