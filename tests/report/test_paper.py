"""Figures and tables for papers, from a measured study, by the real command."""

from __future__ import annotations

import csv
import io
from statistics import mean
from typing import TYPE_CHECKING

import pytest
from report_rows import row

from wattdock.cli.reports import KINDS, WIDTHS
from wattdock.reports import figures
from wattdock.reports.paper_table import comma_separated, latex, markdown
from wattdock.reports.points import points

if TYPE_CHECKING:
    from command import Command


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("timeline", "table")])
def test_each_kind_is_drawn_with_fonts_that_publishers_take(gpu_study: Command, kind: str) -> None:
    """TrueType inside the PDF and no Type 3; one column of 89 mm wide."""
    done = gpu_study("plot", kind, "results", "-o", f"{kind}.pdf")
    assert done.returncode == 0, done.stderr
    drawn = (gpu_study.folder / f"{kind}.pdf").read_bytes()
    assert b"/FontFile2" in drawn
    assert b"/Type3" not in drawn
    assert b"/MediaBox [ 0 0 252 " in drawn


@pytest.mark.slow
def test_a_timeline_is_of_one_result_and_equal_figures_are_equal_files(gpu_study: Command) -> None:
    """Its text is paths, so that it looks the same everywhere; several results have none."""
    folder = next(one for one in (gpu_study.folder / "results").glob("2*") if "fake" in one.name)
    for name in ("one.svg", "two.svg"):
        done = gpu_study("plot", "timeline", folder, "-o", name, "--width", "page")
        assert done.returncode == 0, done.stderr
    one, two = ((gpu_study.folder / name).read_bytes() for name in ("one.svg", "two.svg"))
    assert one == two
    assert b"<text" not in one
    several = gpu_study("plot", "timeline", "results", "-o", "all.svg")
    assert several.returncode == 2
    assert several.stderr == "wattdock: a timeline is of one result, these are 5; name one result folder\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pie", "results", "-o", "f.pdf"), "pie: no such kind; there are intervals, "),
        (("pareto", "results", "-o", "f.gif"), "f.gif: figures are written as .pdf, .svg, .png"),
        (("table", "results", "-o", "t.pdf"), "t.pdf: tables are written as .md, .csv, .tex"),
        (("pareto", "results", "-o", "f.pdf", "--width", "poster"), "--width poster: write column or page"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(gpu_study: Command, words: tuple[str, ...], said: str) -> None:
    """What was written, and what could be."""
    done = gpu_study("plot", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"wattdock: {said}")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_csv_holds_the_figures_with_their_units(gpu_study: Command) -> None:
    """Means over restarts, as the results have them; what was not measured is empty; why none may be published."""
    done = gpu_study("plot", "table", "results", "-o", "table.csv")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO((gpu_study.folder / "table.csv").read_text())))
    stored = {one["config"]["name"]: one["statistics"] for one in gpu_study.results() if one["status"] == "ok"}
    assert len(rows) == 5
    for one in rows:
        assert (one["publishable"], bool(one["reason"])) == ("False", True)
        if one["experiment"] in stored:
            joules = float(one["energy_per_output_token_j"])
            assert joules == pytest.approx(mean(stored[one["experiment"]]["per_restart"]))
        else:
            assert (one["experiment"], one["energy_per_output_token_j"]) == ("one that fails", "")


def test_tables_escape_what_markdown_and_latex_would_take_for_their_own() -> None:
    """A name with a pipe, an underscore, a dollar sign and a command of TeX's."""
    made = points([row("one", {"config.name": "a|b_$c \\input{d}\nnext"}, restarts=[1.0, 1.1])])
    assert "| a\\|b_$c \\input{d} next |" in markdown(made)
    assert "a|b\\_\\$c \\textbackslash{}input\\{d\\} next &" in latex(made)


def test_tables_name_a_fallback_beside_its_verdict() -> None:
    """A row that may be published does not stand for what was asked for; a table without one says nothing of it."""
    own = {"fallback_of": "abcdef0123456789", "step": 1, "change": "workload.batch_size: 4"}
    good = {"audit.publishable": True, "audit.reasons": []}
    made = points([row("one", good | {"fallback": own}), row("two", good)])
    assert "| yes (fallback: workload.batch_size: 4) |" in markdown(made)
    assert "yes (fallback: workload.batch\\_size: 4)" in latex(made)
    assert all("does not stand for it" in form(made) for form in (markdown, latex))
    assert "fallback" not in markdown(made[1:]) + latex(made[1:])
    rows = csv.DictReader(io.StringIO(comma_separated(made)))
    assert [one["fallback"] for one in rows] == ["workload.batch_size: 4", ""]


def test_the_command_offers_every_kind_that_can_be_drawn() -> None:
    """Its list stands apart, so that `--help` loads no matplotlib."""
    assert {*figures.KINDS, "table"} == set(KINDS)
    assert set(figures.WIDTHS) == set(WIDTHS)
