"""The figure that README shows is what its published bundle holds, and today's audit calls it publishable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Called

REPO = Path(__file__).resolve().parents[2]
PAGE = REPO / "docs/measurements/publishable.md"
BUNDLE = REPO / "docs/measurements/data/smollm2-135m-h100.tar"


def test_the_publishable_figure_is_that_of_its_records(called: Called) -> None:
    """As the run itself said, and analysed and audited anew from what the meter and the runner recorded."""
    then, now = (json.loads(called("show", BUNDLE, *again, "--json").stdout)[0] for again in ((), ("--again",)))
    assert (then["audit"]["publishable"], now["audit"]["publishable"], now["audit"]["reasons"]) == (True, True, [])
    assert then["statistics"] == now["statistics"]
    statistics = now["statistics"]
    half = 100 * statistics["ci95_relative"]
    for page in (REPO / "README.md", PAGE):
        assert f"**{statistics['value']:.4f} J per output token ± {half:.2f} %**" in page.read_text(encoding="utf-8")


def test_its_bundle_is_whole_and_the_page_names_its_digest(called: Called) -> None:
    """By `wattdock bundle verify`, which reads every byte."""
    digest = json.loads(called("bundle", "verify", BUNDLE, "--json").stdout)["digest"]
    assert digest in PAGE.read_text(encoding="utf-8")
