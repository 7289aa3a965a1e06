"""The figure that the documentation publishes: its kept records still give it, and each step to it."""

from __future__ import annotations

import csv
import json
from itertools import combinations
from math import expm1, log
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from seams.analysis import BOARDS, BOARDS_FOUND, BOARDS_POOLED, pooled_deviation

import wattdock

if TYPE_CHECKING:
    from conftest import Called

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_published_figure_follows_from_its_records(called: Called) -> None:
    """Analysed and audited anew it is publishable, with the figure and the interval of the page and of README."""
    [result] = json.loads(called("show", DOCS / "measurements/data/vllm-h200.tar", "--again", "--json").stdout)
    budget = result["budget"]
    assert budget["energy_per_unit_j"] == pytest.approx(0.327795, rel=1e-5)
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
    [later] = (each["standard_uncertainty"] for each in budget["not_included"] if each["name"] == "later minutes")
    assert f"later minutes ({later * 100:.1f} %)" in example
    # Over whole passes, whose first prompts arrive at one instant, they were 0.729 and 1.77 s.
    tails_s = [result["performance"][name]["p99_s"] for name in ("ttft", "e2e")]
    assert tails_s == [pytest.approx(0.160, abs=5e-4), pytest.approx(1.227, abs=5e-4)]


def test_the_bundles_that_were_reproduced_follow_from_their_records(called: Called, tmp_path: Path) -> None:
    """It and the next one are publishable, too; the page and README have all figures, the page that of the model."""
    kept = [DOCS / f"measurements/data/{name}.tar" for name in ("vllm-h200-first", "vllm-h200", "vllm-h200-third")]
    page = (DOCS / "measurements/publishable.md").read_text(encoding="utf-8")
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    joules = []
    for result in json.loads(called("show", *kept, "--again", "--json").stdout):
        budget, tokens_per_s = result["budget"], result["performance"]["output_tokens_per_s"]
        joules.append(budget["energy_per_unit_j"])
        figure = f"{joules[-1]:.4f} ± {budget['expanded']:.2%}"[:-1]
        assert result["audit"]["publishable"] is True
        assert f"| {figure} % | {tokens_per_s:,.0f} |" in page
        assert figure.replace(" ±", " J per output token ±") in readme or figure in readme
    less, more = 1 - joules[1] / joules[0], joules[2] / joules[1] - 1
    assert f": {less * 100:.1f} % less, then {more * 100:.1f} % more, equivalent" in page
    called("plot", "table", "--again", *kept, "-o", tmp_path / "table.md")
    pooled = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "0.3318 J/output token [0.3228, 0.3411] for boards of the model" in pooled
    assert "0.3318 [0.3228, 0.3411] for boards of the model" in page


def test_figures_that_another_version_analysed_are_named(called: Called, tmp_path: Path) -> None:
    """As it stored them, until they are analysed again: in figures' own lines, wherever they stand."""
    bundle, line = DOCS / "measurements/data/smollm2-h200.tar", "analysed by another version of wattdock; --again"
    stored, again = called("show", bundle), called("show", bundle, "--again")
    assert (stored.stderr.startswith(f"{bundle}: {line}"), again.stderr) == (True, "")
    assert ("± 0.50%" in stored.stdout, "± 0.44%" in again.stdout) == (True, True)
    by, verdict = "0.2.0.dev0 f51ad2b4", "publishable: 0.329 J/output token ± 0.50 %"
    assert stored.stdout.startswith(f"{verdict} (analysed by wattdock {by}, not by this version)\n")
    assert again.stdout.startswith("0.3287 J/output token ± 0.44 %; cannot be repeated: software\n")
    said = "Another version of wattdock analysed 1 of 1"
    for words, kind in (("report", "html"), ("plot table", "md")):
        for again_too in (False, True):
            called(*words.split(), bundle, *["--again"] * again_too, "-o", tmp_path / f"a.{kind}")
            assert (said in (tmp_path / f"a.{kind}").read_text(encoding="utf-8")) != again_too
    [named] = wattdock.load(bundle)
    assert repr(named) == f"Result({named.folder.name}, ok, analysed by wattdock {by})"
    stored_here = ("--output-dir", named.folder.parent)
    for again_too, half in ((False, "0.0050"), (True, "0.0044")):
        more, analysed_by = ["--again"] * again_too, None if again_too else by
        [row] = json.loads(called("results", "list", *more, "--json", *stored_here).stdout)
        [asked] = json.loads(called("results", "query", "FROM results", *more, "--json", *stored_here).stdout)
        called("results", "export", *more, "--parquet", tmp_path / "all.parquet", *stored_here)
        [exported] = pq.read_table(tmp_path / "all.parquet").to_pylist()
        [result] = wattdock.load(bundle, again=again_too)
        [framed] = wattdock.results(bundle, frame="arrow", again=again_too).to_pylist()
        [of_all] = wattdock.results(output_dir=named.folder.parent, frame="arrow", again=again_too).to_pylist()
        for found in (row, asked, exported, vars(result.stored.row), framed, of_all):
            assert (found["analysed_by"], f"{found['energy_per_output_token_u']:.4f}") == (analysed_by, half)
    assert "analysed by" in called("results", "list", *stored_here).stdout


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
    """Six restarts, some of which the host slowed: the interval is too wide, and nothing else stands against it."""
    kept = DOCS / "measurements/data/smollm2-people-h200.tar"
    [result] = json.loads(called("show", kept, "--again", "--json").stdout)
    page = (DOCS / "measurements/people.md").read_text(encoding="utf-8")
    budget = result["budget"]
    assert f"**{budget['energy_per_unit_j']:.4f} J per output token ± {budget['expanded']:.2%}"[:-1] in page
    assert " | ".join(f"{each:.4f}" for each in budget["per_restart"]) in page
    against = [check["name"] for check in result["audit"]["checks"] if check["status"] in ("fail", "unknown")]
    assert against == ["uncertainty"]
    assert [name for name in against if f'"{name}"' not in page] == []
    kept = DOCS / "measurements/data/smollm2-people-320-h200.tar"
    [result] = json.loads(called("show", kept, "--again", "--json").stdout)
    budget, speed, [gpu] = result["budget"], result["performance"], result["gpus"].values()
    assert result["audit"]["publishable"] is True
    figure = f"{budget['energy_per_unit_j']:.4f} J per output token ± {budget['expanded']:.2%}"[:-1]
    assert f"**{figure} %, publishable**, {speed['output_tokens_per_s']:,.0f} tokens/s" in page
    assert figure in (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert f"waited at most {1 - gpu['worst_pass_busy_share']:.1%}"[:-1] in page


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
    kept = DOCS / "measurements/data/splits-two-h200.tar"
    shown = called("show", kept, "--again", "--json").stdout
    for result in json.loads(shown):
        budget, checks = result["budget"], result["audit"]["checks"]
        against = {check["name"] for check in checks if check["status"] in ("fail", "unknown")}
        restarts = ", ".join(f"{each:.4f}" for each in budget["per_restart"])
        assert restarts in page
        assert against - {"completion"} == {"measured window", "uncertainty", "weights", "software"}
        assert ("completion" in against) == (budget["expanded"] is None) == (f"{restarts}, record lost" in page)
        if budget["expanded"]:
            figure = budget["energy_per_unit_j"]
            assert f"| {figure:.4f} [" in page or f"| {figure:.3f} [" in page
    speeds = {stored.data.config.label: stored.data for stored in wattdock.load(kept, again=True)}
    first, pipeline = speeds["tensor_parallel_size=1"].performance, speeds["pipeline_parallel_size=2"].energy
    assert first
    assert first.ttft
    latencies = f"it is {first.ttft.mean_s:.3f} s, and the 99th percentiles are 1.51 and {first.ttft.p99_s:.3f} s"
    assert latencies in (DOCS / "methodology.md").read_text(encoding="utf-8")
    # Over whole passes, with shortened first answers, it was 32.11 J.
    assert pipeline
    assert pipeline.energy_per_request_j == pytest.approx(33.43, abs=5e-3)
    for split, label in (("DP=2", "data_parallel_size=2"), ("PP=2", "pipeline_parallel_size=2")):
        speed = speeds[label].speed_figure
        assert speed
        assert f"| {split} | {speed.value:,.0f} {speed.interval:,.0f} |" in page
    of_restarts = speeds["data_parallel_size=2"].restarts("output_tokens_per_s").values
    assert "DP=2 made {:,.0f}, {:,.0f} and {:,.0f} tokens/s".format(*of_restarts) in page


def test_kept_figures_of_pytorchs_splits_follow_from_their_records(called: Called) -> None:
    """The figures with their intervals, and that one GPU is the cheapest."""
    page, bundle = (
        (DOCS / "measurements/h200-splits.md").read_text(encoding="utf-8"),
        DOCS / "measurements/data/pytorch-splits-two-h200.tar",
    )
    for stored in wattdock.load(bundle, again=True):
        speed, energy, audit = stored.data.speed_figure, stored.data.energy_figure, stored.data.audit
        assert speed
        assert energy
        assert audit
        assert f"| {speed.value:,.0f} {speed.interval:,.0f} | {energy.value:.3f} {energy.interval:.3f} |" in page
        against = {check.name for check in audit.checks if check.status in ("fail", "unknown")}
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
    kept = DOCS / "measurements/data/precisions-h200.tar"
    shown = called("show", kept, "--again", "--json").stdout
    for result in json.loads(shown):
        budget, asked = result["budget"], result["quality"]["overall"]
        assert f"| {budget['energy_per_unit_j']:.4f} ± {budget['expanded']:.2%}"[:-1] in page
        ends = ", ".join(f"{end:.2f}" for end in asked["interval"])
        costs = f"{asked['energy_per_correct_j']:.2f} [{ends}]"
        assert f"| {asked['score']:.3f} ± {asked['score_error']:.3f} | {costs} |" in page
        in_turn = "{:.4f}, {:.4f} and {:.4f}".format(*budget["per_restart"])
        assert f"{in_turn} J/token in turn" in page or f"FP8 {in_turn}." in page
    sides = (f"{kept}:dtype=float16", f"{kept}:dtype=float16 quantization=fp8")
    [pair] = json.loads(called("compare", *sides, "--again", "--json").stdout)["pairs"]
    assert f"they rule out a fall by {pair['quality']['least_margin']:.3f}" in page
    difference = pair["tests"]["energy_per_output_token_j"]["difference"]
    low, high = (f"{end:+.1%}".replace("-", "−")[:-1] for end in difference["interval"])
    assert f"[{low}, {high}]" in page


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
    assert pooled_deviation(list(works.values())) == pytest.approx(BOARDS_POOLED, abs=0.0005)
    assert f"{sum(map(len, works.values())) - len(works)} degrees of freedom" in BOARDS_FOUND
    deviations, ranges = [], []
    for load in ("near the power limit", "below it"):
        of_load = [logs for (at, _, _), logs in works.items() if at == load]
        h200s = [logs for (at, gpu, _), logs in works.items() if (at, gpu) == (load, "H200")]
        apart = [-expm1(-abs(a - b)) * 100 for logs in h200s for a, b in combinations(logs, 2)]
        deviations.append(f"{(pooled_deviation(of_load) or 0) * 100:.1f} %")
        ranges.append(f"{min(apart):.1f} to {max(apart):.1f} % less")
    for name in ("method.md", "methodology.md", "decisions/budget.md", "measurements/h200-vllm.md"):
        assert [figure for figure in deviations if figure not in pages[name]] == []
    assert [figure for figure in deviations if figure not in BOARDS_FOUND] == []
    assert deviations == [f"{deviation * 100:.1f} %" for deviation in BOARDS]
    assert [figure for figure in ranges if figure not in pages["how-to/publish.md"]] == []
    whole = [f"{float(figure.removesuffix(' %')):.0f} %" for figure in deviations]
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert f"other boards ({whole[0]} near the power limit, {whole[1]} far below)" in readme
