"""The figure that the documentation publishes: its kept records still give it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Called

DOCS = Path(__file__).resolve().parents[2] / "docs/measurements"


def test_the_published_figure_follows_from_its_records(called: Called) -> None:
    """Analysed and audited anew, the bundle is publishable, with the figure and the interval of the page."""
    [result] = json.loads(called("show", DOCS / "data/smollm2-h200.tar", "--again", "--json").stdout)
    budget = result["budget"]
    assert result["audit"]["publishable"] is True
    assert budget["energy_per_output_token_j"] == pytest.approx(0.328955, rel=1e-5)
    figure = f"{budget['energy_per_output_token_j']:.4f} J per output token ± {budget['expanded']:.2%}"
    assert figure.replace("%", " %") in (DOCS / "publishable.md").read_text(encoding="utf-8")
