"""The figure that the documentation publishes: its kept records still give it, and each step to it."""

from __future__ import annotations

import csv
import json
from itertools import combinations
from math import expm1, log
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from seams.analysis import BOARDS, BOARDS_FOUND, pooled_deviation

if TYPE_CHECKING:
    from conftest import Called

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_published_figure_follows_from_its_records(called: Called) -> None:
    """Analysed and audited anew it is publishable, with the figure and the interval of the page and of README."""
    [result] = json.loads(called("show", DOCS / "measurements/data/vllm-h200.tar", "--again", "--json").stdout)
    budget = result["budget"]
    assert budget["energy_per_unit_j"] == pytest.approx(0.335036, rel=1e-5)
    assert result["audit"]["publishable"] is True
    figure = f"{budget['energy_per_unit_j']:.4f} J per output token ± {budget['expanded']:.2%}"[:-1]
    pages = ("../README.md", "measurements/publishable.md")
    assert [page for page in pages if figure not in (DOCS / page).read_text(encoding="utf-8")] == []
    example = (DOCS / "method.md").read_text(encoding="utf-8")
    windows = [each for each in result["energy"]["windows"]["passes"] if each["window"] == "steady_state"]
    for window, corrected in zip(windows, budget["per_restart"], strict=True):
        joules, tokens = window["total_j"], window["output_tokens"]
        steps = (f"{joules:,.1f} J", f"{tokens:,}", f"{joules / tokens:.5f}", f"{tokens:,} × {corrected:.5f}")
        assert [step for step in steps if step not in example] == []
    for entry in budget["entries"]:
        assert f"| {entry['name']} | {entry['standard_uncertainty']:.3%}".removesuffix("%") in example


def test_figures_that_another_version_analysed_are_named(called: Called) -> None:
    """As it stored them, until they are analysed again."""
    bundle, line = DOCS / "measurements/data/smollm2-h200.tar", "analysed by another version of wattdock; --again"
    stored, again = called("show", bundle), called("show", bundle, "--again")
    assert (stored.stderr.startswith(f"{bundle}: {line}"), again.stderr) == (True, "")
    assert ("± 0.50%" in stored.stdout, "± 0.44%" in again.stdout) == (True, True)


def test_the_kept_figure_of_pytorch_follows_from_its_records(called: Called) -> None:
    """Analysed and audited anew, it is publishable, with the figure of its page and of README."""
    [result] = json.loads(called("show", DOCS / "measurements/data/pytorch-h200.tar", "--again", "--json").stdout)
    budget, page = result["budget"], (DOCS / "measurements/h200-engines.md").read_text(encoding="utf-8")
    assert result["audit"]["publishable"] is True
    assert budget["energy_per_unit_j"] == pytest.approx(0.530517, rel=1e-5)
    assert f"{budget['energy_per_unit_j']:.4f} J per output token ± {budget['expanded']:.2%}"[:-1] in page
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert f"{budget['energy_per_unit_j']:.4f} J per output token ± {budget['expanded']:.2%}"[:-1] in readme


def test_the_kept_figure_of_peoples_lengths_follows_from_its_records(called: Called) -> None:
    """Three restarts, of which the host slowed one: the interval is too wide, and nothing else stands against it."""
    kept = DOCS / "measurements/data/smollm2-people-h200.tar"
    [result] = json.loads(called("show", kept, "--again", "--json").stdout)
    page = (DOCS / "measurements/publishable.md").read_text(encoding="utf-8")
    budget = result["budget"]
    assert f"**{budget['energy_per_unit_j']:.4f} J per output token ± {budget['expanded']:.2%}"[:-1] in page
    assert "{:.4f}, {:.4f} and {:.4f}".format(*budget["per_restart"]) in page
    against = [check["name"] for check in result["audit"]["checks"] if check["status"] in ("fail", "unknown")]
    assert against == ["uncertainty"]
    assert [name for name in against if f'"{name}"' not in page] == []


def test_the_boards_of_the_container_and_both_together_follow_from_their_records(
    called: Called, tmp_path: Path
) -> None:
    """Nothing but their image stands against either; two boards tell of boards of the model."""
    kept = [DOCS / f"measurements/data/{name}.tar" for name in ("smollm2-h200", "smollm2-h200-second")]
    page = (DOCS / "measurements/publishable.md").read_text(encoding="utf-8")
    for bundle in kept:
        [result] = json.loads(called("show", bundle, "--again", "--json").stdout)
        budget = result["budget"]
        assert [check["name"] for check in result["audit"]["checks"] if check["status"] == "fail"] == ["software"]
        assert f"{budget['energy_per_unit_j']:.4f} J per output token ± {budget['expanded']:.2%}"[:-1] in page
    called("plot", "table", "--again", *kept, "-o", tmp_path / "table.md")
    pooled = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "0.3301 J/output token [0.3126, 0.3486] for boards of the model" in pooled
    assert "0.3301 [0.3126, 0.3486]" in page


def test_kept_figures_of_training_follow_from_their_records(called: Called) -> None:
    """One and two GPUs, DDP and FSDP2: the page's figures, and all that stands against them."""
    page = (DOCS / "measurements/training.md").read_text(encoding="utf-8")
    shown = called("show", DOCS / "measurements/data/train-two-h200.tar", "--again", "--json").stdout
    against = []
    for result in json.loads(shown):
        budget, checks = result["budget"], result["audit"]["checks"]
        assert f"| {budget['energy_per_unit_j']:.2f} ± {budget['expanded']:.2%}"[:-1] in page
        against.append([check["name"] for check in checks if check["status"] in ("fail", "unknown")])
    assert sorted(against) == [["software"], ["software"], ["software"], ["uncertainty", "software"]]
    scaled = json.loads(called("scaling", "--again", DOCS / "measurements/data/train-two-h200.tar", "--json").stdout)
    for point in (setting["points"][1] for setting in scaled["settings"]):
        ratios = ((point[name]["value"], *point[name]["interval"]) for name in ("energy_ratio", "speed_up"))
        assert " | ".join(f"{value:.3f} [{low:.3f}, {high:.3f}]" for value, low, high in ratios) in page


def test_kept_figures_of_two_gpus_follow_from_their_records(called: Called) -> None:
    """Whole experiments with their intervals; of those cut short, the restarts that are kept."""
    page = (DOCS / "measurements/h200-splits.md").read_text(encoding="utf-8")
    shown = called("show", DOCS / "measurements/data/splits-two-h200.tar", "--again", "--json").stdout
    for result in json.loads(shown):
        budget, checks = result["budget"], result["audit"]["checks"]
        against = {check["name"] for check in checks if check["status"] in ("fail", "unknown")}
        restarts = ", ".join(f"{each:.4f}" for each in budget["per_restart"])
        assert restarts in page
        assert against - {"completion"} == {"uncertainty", "weights", "software"}
        assert ("completion" in against) == (budget["expanded"] is None) == (f"{restarts}, record lost" in page)
        if budget["expanded"]:
            figure = budget["energy_per_unit_j"]
            assert f"| {figure:.4f} [" in page or f"| {figure:.3f} [" in page


def test_kept_figures_of_pytorchs_splits_follow_from_their_records(called: Called) -> None:
    """The figures with their intervals, and that one GPU is the cheapest."""
    page, bundle = (
        (DOCS / "measurements/h200-splits.md").read_text(encoding="utf-8"),
        DOCS / "measurements/data/pytorch-splits-two-h200.tar",
    )
    for result in json.loads(called("show", bundle, "--again", "--json").stdout):
        budget, checks = result["budget"], result["audit"]["checks"]
        assert f"| {budget['energy_per_unit_j']:.3f} [" in page
        against = {check["name"] for check in checks if check["status"] in ("fail", "unknown")}
        assert against == {"measured window", "uncertainty", "weights", "software"}
    assert "fewest joules: one GPU" in (shown := called("scaling", "--again", bundle).stdout)
    ratio = "1.51 [1.25, 1.82] times as much"
    assert ratio in shown
    assert ratio in page


def test_the_kept_figure_of_sglang_follows_from_its_records(called: Called) -> None:
    """Analysed by windows that begin where they end, it holds the declared work; its interval is too wide."""
    page = (DOCS / "measurements/h200-engines.md").read_text(encoding="utf-8")
    [result] = json.loads(called("show", DOCS / "measurements/data/sglang-h200.tar", "--again", "--json").stdout)
    budget = result["budget"]
    assert f"**{budget['energy_per_unit_j']:.4f} J per output token ± {budget['expanded']:.2%}"[:-1] in page
    assert "{:.4f}, {:.4f} and {:.4f}".format(*budget["per_restart"]) in page
    assert [check["name"] for check in result["audit"]["checks"] if check["status"] == "fail"] == ["uncertainty"]


def test_kept_figures_of_two_precisions_follow_from_their_records(called: Called) -> None:
    """Joules per token, the score and what a correct answer cost."""
    page = (DOCS / "measurements/precisions.md").read_text(encoding="utf-8")
    shown = called("show", DOCS / "measurements/data/precisions-h200.tar", "--again", "--json").stdout
    for result in json.loads(shown):
        budget, asked = result["budget"], result["quality"]["overall"]
        assert f"| {budget['energy_per_unit_j']:.4f} ± {budget['expanded']:.2%}"[:-1] in page
        ends = ", ".join(f"{end:.2f}" for end in asked["interval"])
        costs = f"{asked['energy_per_correct_j']:.2f} [{ends}]"
        assert f"| {asked['score']:.3f} ± {asked['score_error']:.3f} | {costs} |" in page


def test_what_is_said_of_other_boards_follows_from_all_comparisons() -> None:
    """The figures stand on their pages, and pool to the budget's constant and to what each page says."""
    pages = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    works: dict[tuple[str, str, str], list[float]] = {}
    with (DOCS / "measurements/data/boards.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            joules = row["energy_per_output_token_j"]
            works.setdefault((row["load"], row["gpu"], row["work"]), []).append(log(float(joules)))
            # Of the H100s the page has the range of all restarts, and by how much boards differ.
            assert (joules if row["gpu"] == "H200" else "Boards differ by 1.4 %") in pages[
                f"measurements/{row['page']}"
            ]
    assert pooled_deviation(list(works.values())) == pytest.approx(BOARDS, abs=0.0005)
    assert f"{sum(map(len, works.values())) - len(works)} degrees of freedom" in BOARDS_FOUND
    deviations, ranges = [], []
    for load in ("near the power limit", "below it"):
        of_load = [logs for (at, _, _), logs in works.items() if at == load]
        h200s = [logs for (at, gpu, _), logs in works.items() if (at, gpu) == (load, "H200")]
        apart = [-expm1(-abs(a - b)) * 100 for logs in h200s for a, b in combinations(logs, 2)]
        deviations.append(f"{(pooled_deviation(of_load) or 0) * 100:.1f} %")
        ranges.append(f"{min(apart):.1f} to {max(apart):.1f} %")
    for name in ("method.md", "methodology.md", "decisions/budget.md", "measurements/h200-vllm.md"):
        assert [figure for figure in deviations if figure not in pages[name]] == []
    assert [figure for figure in deviations if figure not in BOARDS_FOUND] == []
    assert [figure for figure in ranges if figure not in pages["how-to/publish.md"]] == []
    whole = [f"{float(figure.removesuffix(' %')):.0f} %" for figure in deviations]
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert f"other boards ({whole[0]} near the power limit, {whole[1]} far below)" in readme
