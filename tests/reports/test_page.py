"""The page without a browser: what it says first, what it escapes, how big it gets; and how results are named."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest
from make.kept import SERVED, TRAINED
from make.outcomes import known
from make.rows import document, reason, row
from make.stored import opener
from refused import raises
from seams.console import terminal_rows
from seams.reports import Trace, labels, page, pareto_front, thin, timelines

from wattdock import load
from wattdock.errors import Cause, ConfigError, StoreError
from wattdock.reports import points_of, write_report
from wattdock.store import COLUMNS, StoredResult, find_results

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def shown(*rows: StoredResult) -> str:
    """Return a page without its scripts, which are not ours to read."""
    return re.sub(r"<script>.*?</script>", "", page(rows, title="a title", written=NOW), flags=re.DOTALL)


def section(text: str, name: str) -> str:
    """Return one section of a page."""
    return text.partition(f'<section id="{name}">')[2].partition("</section>")[0]


def test_names_from_results_cannot_become_markup() -> None:
    """In tables, in attributes, and inside the figures that the script reads."""
    changes = {"config.name": HOSTILE, "config.backend": HOSTILE, "environment.model.name": HOSTILE}
    refused = {"audit.reasons": [reason(HOSTILE)], "audit.publishable": False}
    text = shown(row("one", changes), row("two", changes | refused))
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert "<img" not in text
    [data] = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', text, flags=re.DOTALL)
    figures = json.loads(data)
    [values, *_] = figures["charts"]["pareto"]["datasets"].values()
    assert values[0]["work"].startswith(HOSTILE)


def test_the_page_names_no_place_to_fetch_from_and_forbids_all() -> None:
    """One file, whose policy lets only its own script run."""
    text = page([row("one")], title="a title", written=NOW)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert policy.count("sha256-") == text.count("<script>") == 1
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)) == []


def test_the_verdict_comes_before_the_figures_and_counts() -> None:
    """In words; every row of the table has its own beside its name."""
    good = {"audit.publishable": True, "audit.reasons": [], "audit.checks": []}
    text = shown(row("one", good), row("two"))
    verdict = re.compile(r'<p class="verdict \w+">(.*?)<')
    # The first is of browsers without scripts.
    [_, found], [_, both] = verdict.findall(text), verdict.findall(shown(row("one", good), row("two", good)))
    assert (found.split()[0], found.split()[2], both.split()[:2]) == ("1", "2", ["All", "2"])
    assert text.index(found) < text.index("<table") < text.index('data-chart="intervals"')
    failed = [row(name, {"status": "failed", "audit.publishable": False}) for name in ("one", "two")]
    assert "None of the 2 results may be published; all failed." in shown(*failed)
    assert "Each figure is a sum over all measured passes" not in section(shown(*failed), "summary")
    assert "; 1 failed." in shown(row("one", good), failed[1])


def test_each_reason_in_the_front_leads_to_its_check_on_the_page() -> None:
    """The verdict in one line stands beside the reasons."""
    checks = [{"name": name, "status": "fail", "figure": "1"} for name in ("uncertainty", "clock")]
    audit = {"publishable": False, "summary": "not publishable: clock: 2", "checks": checks}
    text = shown(row("one", {"audit": {**audit, "reasons": [reason("uncertainty"), reason("clock")]}}))
    places = re.findall(r'<a href="#(check-[^"]+)">([^<]+)</a>', text)
    assert set(places) == {("check-uncertainty", "uncertainty"), ("check-clock", "clock")}
    assert "<p>not publishable: clock: 2</p>" in section(text, "summary")
    assert all(f'id="{place}"' in text for place, _ in places)


@pytest.mark.parametrize(
    ("others", "said"),
    [(0, ("pass", "yes")), (1, ("unknown", "yes for 1 of 2")), (2, ("unknown", "yes for 1 of 3"))],
)
def test_a_verdict_of_one_result_is_not_the_answer_for_all(others: int, said: tuple[str, str]) -> None:
    """An experiment that failed before its runner answered has no audit, and nothing is known of it."""
    checks = [{"name": "clock", "status": "pass", "figure": "1", "question": "wrong"}]
    good = {"publishable": True, "summary": "", "reasons": [], "checks": checks}
    failed = [row(f"f{at}", {"status": "failed", "audit": None}) for at in range(others)]
    summary = section(shown(row("ok", {"audit": good}), *failed), "summary")
    [answer] = re.findall(r'Was nothing seen wrong\?</strong>\s*<span class="status (\w+)">([^<]*)<', summary)
    assert answer == said


def test_what_was_not_measured_is_said_with_its_reason_and_never_a_zero() -> None:
    """A result without joules has no point among those that have."""
    changes = {"energy.total_j": None, "energy.reason": "GPU lost", "budget": None}
    text = shown(row("one", restarts=[1.0, 1.1]), row("two", changes))
    assert f"{changes['energy.reason']} (two)" in text
    [none] = points_of([row("two", changes)])
    assert none.j_per_token is None


def test_intervals_stand_beside_figures_where_restarts_are_enough_for_one() -> None:
    """1.0, 1.1 and 1.2 J/token from three restarts: 1.1 × exp(± 4.303 × 0.09119 ÷ √3); with fewer there is none."""
    text = shown(row("one", restarts=[1.0, 1.1, 1.2]), row("two", restarts=[1.0, 1.1]))
    assert '1.10 <span class="interval">[0.88, 1.38]</span>' in text
    assert ">1.050</span>" in text


def test_each_entry_of_a_budget_has_a_bar_as_long_as_its_share() -> None:
    """The whole sum is 6 em long; what is not in the interval has no bar, a result without joules no table."""
    text = shown(row("one"), row("two", restarts=[1.0, 1.1, 1.2]), row("three", {"budget": None}))
    first, second = section(text, "budget").split("<details")[1:]
    widths = re.findall(r'<span class="bar" style="width: ([0-9.]+)em"></span> (\d+) %', first)
    shares = [entry.share for entry in known(row("one").result.budget).entries]
    assert widths == [(f"{6 * share:.1f}", f"{100 * share:.0f}") for share in shares]
    assert sum(float(width) for width, _ in widths) == pytest.approx(6, abs=0.1)
    assert first.count("<td>not in it</td>") == 3
    assert "too few for an interval" in first
    assert "1.100 J/output token ± 22.65 %" in second
    assert second.count('class="bar"') == 1
    assert '<a href="#budget">' in text
    assert 'id="budget"' not in shown(row("three", {"budget": None}))


def test_the_memorys_part_is_a_column_and_a_row() -> None:
    """A result without it has a dash."""
    hbm = {"energy.hbm_j": 12.0, "energy.hbm_timing_j": 0.5, "energy.mean_hbm_power_w": 97.4}
    measured = row("one", hbm)
    summary = section(shown(measured, row("two")), "summary")
    assert f">{COLUMNS['mean_hbm_power_w'].heading}<" in summary
    assert ">97</span>" in summary
    of_memory = terminal_rows(measured)["HBM"]
    assert of_memory.startswith("12.0 J [11.0, 13.0] of these")
    assert of_memory.endswith(" 97 W")
    assert terminal_rows(row("one", hbm | {"energy.mean_hbm_power_w": None}))["HBM"].endswith(" – W")


def test_the_share_of_prompts_from_a_cache_stands_on_page_and_terminal() -> None:
    """A page has no such column where no engine tells."""
    tokens = {"performance.prompt_tokens": 400, "performance.cached_prompt_tokens": 100}
    cached = row("one", tokens | {"performance.cached_prompt_share": 0.25})
    silent = row("two", {"performance.cached_prompt_tokens": None, "performance.cached_prompt_share": None})
    assert ">25.0%<" in section(shown(cached, silent), "summary")
    assert terminal_rows(cached)["tokens"].endswith("400 prompt, 100 of them from a cache (25.0%)")
    assert ">prompt from a cache<" not in shown(silent)


def test_goodput_stands_on_the_page_where_it_is_known() -> None:
    """A column that no result has a figure for is not there."""
    good = {"requests": 8, "share_met": 0.75, "requests_met_per_s": 2.5}
    known = row("one", {"goodput": good})
    text = shown(known, row("two"))
    assert '<th scope="col" class="number">met SLO</th>' in text
    assert ">75.0%</span>" in text
    assert "met SLO" not in shown(row("two"))


def test_how_near_a_result_comes_to_its_limits_is_told() -> None:
    """The nearest limit is named."""
    placed = {"nearest_limit": "bandwidth", "least_s": {"arithmetic": 2.0, "bandwidth": 3.0}, "time_ratio": 1.25}
    rows = [row("one", {"compute.roofline": placed}), row("two")]
    assert ">bandwidth<" in shown(*rows)
    roofline = terminal_rows(rows[0])["roofline"]
    assert all(figure in roofline for figure in ("1.25 ×", "bandwidth 80%", "arithmetic 53%"))


def test_a_page_of_many_results_says_what_it_leaves_out() -> None:
    """Reasons beyond the third, timelines beyond the twentieth result; the summary is whole."""
    reasons = {"audit.reasons": [reason(f"reason {at}", "so") for at in range(5)]}
    rows = [row(f"{at}", reasons, restarts=[1.0, 1.1]) for at in range(121)]
    many, whole = shown(*rows), shown(*rows[:2])
    assert many.count('<span class="folder">') == 121
    assert many.count("<li>") == 121 * (3 + len(["and 2 more"])) + len(["wrong", "known", "repeat"])
    assert "reason 2" in many
    assert ("20 results" in section(many, "timeline"), "20 results" in section(whole, "timeline")) == (True, False)


def test_a_page_of_two_units_says_why_it_has_no_charts() -> None:
    """Joules per sample have no place on an axis of joules per output token; each is in the tables."""
    html = shown(*(result.stored for result in (*load(TRAINED), *load(SERVED))))
    assert "nothing to draw on one axis: work in samples and in output tokens" in html


def test_the_front_is_what_nothing_else_beats() -> None:
    """More tokens per second for fewer joules each; a slow and dear one is not on it."""

    def point(name: str, cost: float, speed: float) -> StoredResult:
        return row(name, {"performance.output_tokens_per_s": speed}, restarts=[cost])

    found = points_of(
        [point("a", 3, 100), point("b", 1, 300), point("c", 2, 200), point("d", 1.5, 400), point("e", 4, 90)]
    )
    assert pareto_front(found) == {"b", "d"}


def test_a_front_joins_finished_results_of_equal_work() -> None:
    """Short answers, and a run that was broken off, do not beat what took longer answers to its end."""
    speed = "performance.output_tokens_per_s"
    rows = [
        row("cheap", {"config.workload.max_output_tokens": 8, speed: 900.0}, restarts=[0.1]),
        row("whole", {speed: 300.0}, restarts=[1.0]),
        row("broken off", {speed: 600.0, "status": "interrupted"}, restarts=[0.5]),
        row("worse", {speed: 200.0}, restarts=[2.0]),
    ]
    assert pareto_front(points_of(rows)) == {"cheap", "whole"}


def test_a_front_tells_files_of_one_name_and_conversations_apart() -> None:
    """Short prompts beat long ones in a file of the same name; a cached prefix and turns are other work, too."""
    source, digest = "config.workload.prompts.source", "environment.dataset_sha256"
    limit = "config.workload.max_output_tokens"
    files = {"environment.dataset": "prompts.jsonl", "performance.output_tokens_per_s": 300.0}
    turns = {"config.workload.prompts.turns": 8, "config.vllm": {"enable_prefix_caching": True}}
    turns |= {"config.backend": "vllm"}
    rows = [
        row("long", files | {source: "/a/prompts.jsonl", digest: "a" * 64, "procedure.limit_tokens": 16}, restarts=[2]),
        row("same", files | {source: "/b/prompts.jsonl", digest: "a" * 64, "procedure.limit_tokens": 15}, restarts=[3]),
        row("short", files | {source: "/a/prompts.jsonl", digest: "b" * 64}, restarts=[1]),
        row("once", restarts=[1]),
        row("turns", turns, restarts=[2]),
        row("seed", {"config.workload.seed": 7}, restarts=[3]),
        row("drawn", {limit: {"distribution": "uniform", "min": 10, "max": 30}}, restarts=[4]),
        row("drawn so", {limit: {"distribution": "gamma", "mean": 20, "std": 1, "min": 10, "max": 30}}, restarts=[5]),
    ]
    points = {point.label: point for point in points_of(rows)}
    assert pareto_front([*points.values()]) == {"long", "short", "once", "turns", "drawn", "drawn so"}
    assert points["long"].work == "shape:tiny-llama, prompts.jsonl, SHA-256 aaaaaaaa, 20 out where it has no limit"
    assert points["turns"].work.endswith("prompts.turns 8")


def test_thinning_keeps_every_extreme_of_a_line() -> None:
    """A spike of one sample in a million is what a reader looks for."""
    value = np.full(1_000_000, 300.0)
    value[123_456], value[654_321] = 700.0, 10.0
    line = thin(Trace("GPU-a", "counter", np.arange(value.size) / 10, value), 500)
    assert len(line.at_s) <= 500
    assert (line.value.max(), line.value.min(), line.at_s[-1]) == (700.0, 10.0, 99_999.9)
    assert bool(np.all(np.diff(line.at_s) > 0))


def test_the_tokens_that_are_drawn_are_all_that_were_generated(gpu_study: Path) -> None:
    """The area under the drawn steps of each restart is its passes' tokens."""
    with ExitStack() as unpacked:
        rows = find_results(["two-simulated"], gpu_study, opener(unpacked))
    finished = [result for result in rows if result.result.status == "ok"]
    for result in finished:
        assert result.result.energy
        for restart in timelines(result, points=500):
            [tokens] = restart.lines["tokens"]
            at_s, rates = tokens.at_s, tokens.value
            # What a line of steps shows: from a point to the next, where both are known.
            shown = ~np.isnan(rates[:-1]) & ~np.isnan(rates[1:])
            wanted = sum(
                part.output_tokens for part in result.result.energy.passes if part.restart == int(restart.label) - 1
            )
            assert float(np.sum((np.diff(at_s) * rates[:-1])[shown])) == pytest.approx(wanted)
    assert len(finished) == 4


def test_drawn_power_adds_up_to_the_measured_energy(gpu_study: Path) -> None:
    """The line between counter changes, integrated over a pass, is the pass's joules, over the GPUs used."""
    with ExitStack() as unpacked:
        rows = find_results([str(gpu_study)], gpu_study, opener(unpacked))
    checked = 0
    for result in rows:
        for restart in timelines(result, points=1_000_000):
            total = {trace.name: trace for trace in restart.lines["gpu"]}
            used = result.result.environment.gpu_uuids if result.result.environment else []
            for span in restart.spans:
                if span["kind"] == "pass" and span["J (GPUs used)"] is not None:
                    ends = (span["begins, s"], span["begins, s"] + span["lasts, s"])
                    drawn_j = sum(_integral(total[uuid], *ends) for uuid in used)
                    assert drawn_j == pytest.approx(span["J (GPUs used)"], rel=0.03)
                    checked += 1
    assert checked == 4 * 3


@pytest.mark.parametrize(("restart", "clock", "shown"), [(0, 0, 1), (1, 0, 0), (0, 1, 0)])
def test_a_window_is_shown_in_the_restart_that_it_is_of(gpu_study: Path, restart: int, clock: int, shown: int) -> None:
    """After a reboot a clock begins anew, so that a window may lie within another restart's pass by its instants."""
    with ExitStack() as unpacked:
        rows = find_results([str(gpu_study)], gpu_study, opener(unpacked))
        stored = next(stored for stored in rows if stored.result.status == "ok")
        result = stored.result
        assert result.environment
        first_pass = next(span for span in result.spans if (span.restart, span.pass_index) == (0, 0))
        inside = {"name": "window", "start_ns": first_pass.start_ns + 1, "end_ns": first_pass.end_ns - 1}
        window = first_pass.model_copy(update={**inside, "restart": restart, "clock": clock})
        clocks = result.environment.clock
        clocks = clocks.model_copy(update={"identities": [*clocks.identities, "another boot"]})
        environment = result.environment.model_copy(update={"clock": clocks})
        changes = {"spans": [*result.spans, window], "environment": environment}
        rebooted = replace(stored, result=result.model_copy(update=changes))
        kinds = [span["kind"] for part in timelines(rebooted, points=100) for span in part.spans]
    assert kinds.count("window") == shown


def _integral(line: Trace, start_s: float, end_s: float) -> float:
    # Between what is stored around the spans is a hole.
    energy = np.concatenate([[0.0], np.cumsum(np.nan_to_num(np.diff(line.at_s) * line.value[:-1]))])
    return float(np.interp(end_s, line.at_s, energy) - np.interp(start_s, line.at_s, energy))


def test_results_of_one_name_are_told_apart_by_what_differs_in_them() -> None:
    """By the fewest traits: the engine's version, the setting with most values, then boards, else the start."""

    def told(*changes: dict[str, Any]) -> list[str]:
        return labels([row(f"{at}", {"config.name": "same", **each}) for at, each in enumerate(changes)])

    batches = [{"config.workload.batch_size": size, "config.workload.seed": size} for size in (1, 2)]
    assert told(*batches) == ["same batch_size=1", "same batch_size=2"]
    version = "environment.runner.framework_version"
    boards: list[dict[str, Any]] = [
        {"environment.gpu_uuids": [f"GPU-{letter * 8}-0000"], version: "0.26"} for letter in "ab"
    ]
    longer: list[dict[str, Any]] = [{version: "0.33"}, {version: "0.33", "config.workload.batch_size": 9}]
    assert told(*boards, *longer) == [
        *("same version=0.26 board=GPU-aaaaaaaa", "same version=0.26 board=GPU-bbbbbbbb"),
        *("same version=0.33 batch_size=2", "same version=0.33 batch_size=9"),
    ]
    starts = [{"started_utc": f"2026-11-30T12:00:0{second}+00:00"} for second in (1, 2)]
    assert told(*starts) == ["same start=2026-11-30T12:00:01", "same start=2026-11-30T12:00:02"]
    assert told({}, {}) == ["same (1)", "same (2)"]
    third = {"config.name": "same batch_size=1", "config.workload.batch_size": 3}
    assert told(third, *batches) == [
        "same batch_size=1 batch_size=3",
        "same batch_size=1 batch_size=1",
        "same batch_size=2",
    ]
    assert labels([row("own"), row("another")]) == ["own", "another"]
    unnamed = [row(f"{size}", {"config.name": "", "config.workload.batch_size": size}) for size in (1, 2)]
    assert labels(unnamed) == ["fake shape:tiny-llama batch 1", "fake shape:tiny-llama batch 2"]


def test_a_study_a_folder_and_a_bundle_mean_their_results_and_an_old_attempt_none(tmp_path: Path) -> None:
    """By its id or its folder; what a resumed study made anew counts once."""
    results = tmp_path / "results"
    for name, study, attempt in (("a", "s1", 1), ("b", "s1", 2), ("c", "s2", 1)):
        (results / name).mkdir(parents=True)
        own = {"study": {"study_id": study, "attempt": attempt}, "experiment_id": "same"}
        (results / name / "result.json").write_text(json.dumps(document(own)))
    (results / "studies/s1").mkdir(parents=True)
    (results / "studies/s1/journal.jsonl").touch()

    def names(*named: str | Path) -> list[str]:
        with ExitStack() as unpacked:
            found = find_results([str(path) for path in named], results, opener(unpacked))
            return [result.folder.name for result in found]

    assert names(results) == ["b", "c"]
    assert names("s1") == names(results / "studies/s1") == ["b"]
    assert names(tmp_path) == ["b", "c"]
    assert names(results / "c/result.json", "s2") == ["c"]
    with raises(ConfigError, "s3"):
        names("s3")
    (tmp_path / "text.tar").write_text("no archive")
    with raises(StoreError, "text.tar"):
        names(tmp_path / "text.tar")


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """With the place, and what to do."""
    with raises(StoreError, "folder.html", cause=Cause.MISSING):
        write_report([row("one")], tmp_path / "no/such/folder.html", title="a title")
    with raises(ConfigError, cause=Cause.EMPTY):
        write_report([], tmp_path / "page.html", title="a title")
