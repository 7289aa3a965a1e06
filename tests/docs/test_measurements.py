"""The figure that was published and is withdrawn: its bundle is evidence, and today's audit says what was wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Called

REPO = Path(__file__).resolve().parents[2]
PAGE = REPO / "docs/measurements/publishable.md"
BUNDLE = REPO / "docs/measurements/data/smollm2-135m-h100.tar"


def test_the_withdrawn_figure_is_wrong_by_today_s_audit_of_its_records(called: Called) -> None:
    """What the run said of itself, and what the same records say now; the pages say the latter."""
    then, now = (json.loads(called("show", BUNDLE, *again, "--json").stdout)[0] for again in ((), ("--again",)))
    assert (then["audit"]["publishable"], now["audit"]["publishable"]) == (True, False)
    assert then["statistics"]["ci95"] == now["statistics"]["ci95"]
    [reason] = now["audit"]["reasons"]
    assert (reason["group"], reason["name"]) == ("wrong", "work sent against work declared")
    assert "wrapped list" in reason["found"]
    passes = now["procedure"]["mix"]
    sent = sum(each["prompt_tokens"] for each in passes) / sum(each["output_tokens"] for each in passes)
    declared = passes[0]["declared_prompt_tokens"] / passes[0]["declared_output_tokens"]
    cost_j = now["energy"]["token_costs"]["joules_per_prompt_token"]["value"]
    corrected = now["statistics"]["value"] - cost_j * (sent - declared)
    for page in (REPO / "README.md", PAGE):
        text = page.read_text(encoding="utf-8")
        assert "is withdrawn" in text
        figures = (f"{sent:.1f} prompt tokens", f"instead of {declared:.0f}", f"{corrected:.4f}")
        assert [figure for figure in figures if figure not in text] == []


def test_its_bundle_is_whole_and_the_page_names_its_digest(called: Called) -> None:
    """By `wattdock bundle verify`, which reads every byte."""
    digest = json.loads(called("bundle", "verify", BUNDLE, "--json").stdout)["digest"]
    assert digest in PAGE.read_text(encoding="utf-8")
