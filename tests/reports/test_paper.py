"""Tables for papers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from make.kept import TRAINED
from make.rows import row
from seams.analysis import Figure, Interval
from seams.reports import figure_text, latex, markdown

from wattdock.reports import draw, points_of
from wattdock.reports.cells import DISTURBED
from wattdock.store import load_result

if TYPE_CHECKING:
    from conftest import Called


def test_the_csv_holds_the_figures_with_their_units(called: Called, gpu_study: Path) -> None:
    """As the results have them; what was not measured is empty; why none may be published."""
    done = called("results", "export", "--csv", "table.csv", "--output-dir", gpu_study)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(Path("table.csv").read_text())))
    finished = [result for result in map(load_result, gpu_study.glob("2*")) if result.status == "ok"]
    stored = {result.config.name: figure.value for result in finished if (figure := result.energy_figure)}
    assert len(rows) == 5
    for line in rows:
        assert (line["publishable"], bool(line["reason"])) == ("false", True)
        if line["name"] in stored:
            joules = float(line["energy_per_output_token_j"])
            assert joules == pytest.approx(stored[line["name"]])
        else:
            assert (line["name"], line["energy_per_output_token_j"]) == ("one that fails", "")


def test_tables_escape_what_markdown_and_latex_would_take_for_their_own() -> None:
    """A name with a pipe, an underscore, a dollar sign and a command of TeX's."""
    made = points_of([row("one", {"config.name": "a|b_$c \\input{d}\nnext"}, restarts=[1.0, 1.1])])
    assert "| output tokens/s |" in markdown(made)
    in_markdown, in_latex = r"a\|b_$c \input{d} next", r"a|b\_\$c \textbackslash{}input\{d\} next"
    assert f"| {in_markdown} |" in markdown(made)
    assert f"{in_latex} &" in latex(made)


def test_the_caption_says_which_intervals_are_the_budgets(called: Called, tmp_path: Path) -> None:
    """Those of J/unit, as those of J/output token; the table's cell holds the budget's interval."""
    called("plot", "table", TRAINED, "-o", tmp_path / "table.md")
    table = (tmp_path / "table.md").read_text()
    for result in json.loads(called("show", TRAINED, "--json").stdout):
        budget = result["budget"]
        shown = figure_text(Figure(budget["energy_per_unit_j"], Interval(*budget["interval"])))
        assert f"| {shown} | samples |" in table
    assert "of J/output token and J/unit from the uncertainty budget, of others from how restarts differ" in table


def test_a_result_that_others_disturbed_has_a_sign_and_a_note(tmp_path: Path) -> None:
    """In tables and figures."""
    checks = [{"name": "CPU use by others", "status": "fail", "figure": "61% in the worst pass"}]
    rows = [row("one", {"config.name": "one", "audit.checks": checks}), row("two", {"config.name": "two"})]
    made = points_of(rows)
    assert "| one † |" in markdown(made)
    assert "| two |" in markdown(made)
    assert r"one \dag{} &" in latex(made)
    for form in (markdown, latex):
        assert "Others used" in form(made)
        assert "Others used" not in form(points_of(rows[1:]))
    # Their wattdock has no commit.
    by = "Another version of wattdock analysed {0} of {0}; --again does so anew."
    # Beside the name where the chart has names, else beside the marker.
    for kind, sign in {"intervals": ">one †<", "pareto": ">†<"}.items():
        assert draw(kind, rows, tmp_path / "chart.svg") == f"{DISTURBED} {by.format(2)}"
        assert sign in (tmp_path / "chart.svg").read_text()
        assert draw(kind, rows[1:], tmp_path / "chart.svg") == by.format(1)
        assert "†" not in (tmp_path / "chart.svg").read_text()


def test_a_name_that_xml_cannot_hold_is_drawn_with_a_mark(tmp_path: Path) -> None:
    """The library that draws would end the process; a stranger's result may be named anything."""
    draw("intervals", [row("one", {"config.name": "a\0\x1b\ufffe b"}), row("two", {})], tmp_path / "chart.svg")
    assert "a\ufffd\ufffd\ufffd b" in (tmp_path / "chart.svg").read_text()
