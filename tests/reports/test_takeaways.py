"""What a report says above a chart, in a sentence that is true of what the chart draws."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from report_rows import row

from wattdock.reports.chart_data import points_of
from wattdock.reports.charts import CHARTS
from wattdock.reports.page import page
from wattdock.reports.takeaways import TAKEAWAYS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock.store import StoredResult

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MODEL, BATCH, LENGTH = "environment.model.name", "config.workload.batch_size", "config.workload.max_output_tokens"
TOKENS = 1000


def said(key: str, rows: Sequence[StoredResult]) -> str:
    """Return the sentence about a chart; empty where there is none."""
    points = points_of(rows)
    return TAKEAWAYS[key](CHARTS[key][1](points).data.values, points)


def costing(name: str, joules: float, changes: Mapping[str, Any] = {}) -> StoredResult:
    """Return a result of three equal restarts."""
    return row(name, changes, restarts=[joules] * 3)


def test_every_chart_of_several_results_has_one() -> None:
    """A timeline is of one result."""
    assert set(TAKEAWAYS) == set(CHARTS) - {"timeline"}


def above(rows: Sequence[StoredResult]) -> dict[str, str]:
    """Return the sentence above each chart of a report, empty where there is none."""
    text = page(rows, title="a study", written=NOW)
    sections = re.findall(r'<section id="(\w+)">\s*<h2>[^<]*</h2>\s*(?:<p>(.*?)</p>)?', text)
    return {key: html.unescape(sentence) for key, sentence in sections if key in TAKEAWAYS}


def test_a_report_says_it_above_each_chart_that_it_draws() -> None:
    """The sentence of that chart and of these results, and none where there is none."""
    roofline = {"nearest_limit": "bandwidth", "least_s": {"bandwidth": 3.0}, "time_ratio": 2.0}
    changes = {BATCH: 1, "environment.gpu_count": 2, "compute.roofline": roofline}
    rows = [costing("a", 3.0, {BATCH: 1}), costing("b", 1.0, {BATCH: 8}), costing("c", 1.5, changes)]
    assert above(rows) == {key: said(key, rows) for key in TAKEAWAYS}
    assert all(above(rows).values())
    assert (above(rows[:1])["intervals"], above(rows[:1])["pareto"]) == ("", "")


def test_one_result_is_compared_with_nothing() -> None:
    """Neither the best of one nor unbeaten by none."""
    assert (said("intervals", [costing("a", 1.0)]), said("pareto", [costing("a", 1.0)])) == ("", "")


@pytest.mark.parametrize(
    ("restarts", "sentence"),
    [
        ({"c": [3.0] * 3, "b": [2.0] * 3, "a": [1.0] * 3}, "a costs least, 1 J/output token; c has 3 times that."),
        (
            {"c": [3.0] * 3, "b": [1.3] * 3, "a": [1.0, 1.1, 1.2]},
            "Which costs least is open: no interval parts a (1.1 J/output token) from b.",
        ),
        (
            {name: [1.0] * 3 for name in "abcde"},
            "Which costs least is open: no interval parts a (1 J/output token) from b, c, d, ….",
        ),
    ],
)
def test_a_cheapest_is_named_only_where_its_interval_lies_below_all_others(
    restarts: Mapping[str, Sequence[float]], sentence: str
) -> None:
    """1.1 ± 0.25 J may be more than 1.3 J."""
    assert said("intervals", [row(name, restarts=values) for name, values in restarts.items()]) == sentence


@pytest.mark.parametrize(
    ("tokens_per_s", "sentence"),
    [
        ({"a": 25.0, "b": 100.0}, "b is fastest, 100.0 output tokens/s; a has 0.25 times that."),
        (
            {"a": 100.0, "b": 100.0},
            "Which is fastest is open: no interval parts a (100.0 output tokens/s) from b.",
        ),
    ],
)
def test_without_joules_speeds_are_compared(tokens_per_s: Mapping[str, float], sentence: str) -> None:
    """The most tokens per second are the best."""

    def result(name: str, speed: float) -> StoredResult:
        passes = {f"energy.passes.{number}.duration_s": TOKENS / speed for number in range(3)}
        return costing(name, 1.0, {**passes, "performance.output_tokens_per_s": speed, "energy.total_j": None})

    assert said("intervals", [result(*named) for named in tokens_per_s.items()]) == sentence


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        (("m", "m", "m"), "Beaten in both speed and cost by no other result: 1 of 3 (c)."),
        (("m", "n", "n"), "Beaten in both speed and cost by no other result of its model: 2 of 3 (a, c)."),
    ],
)
def test_results_are_unbeaten_among_those_of_their_model(models: Sequence[str], sentence: str) -> None:
    """5 J of one model is beaten by 1 J of another, but that one does other work."""
    costs_j, speeds = (5.0, 2.0, 1.0), (100.0, 200.0, 300.0)
    rows = [
        costing(name, joules, {MODEL: model, "performance.output_tokens_per_s": speed})
        for name, joules, speed, model in zip("abc", costs_j, speeds, models, strict=True)
    ]
    assert said("pareto", rows) == sentence


def test_a_load_that_results_share_is_counted_once() -> None:
    """Two studies, in each 100 + 700 J before two results' passes of 200 J: 1,400 of 2,400 J, not 2,800 of 4,000 J."""

    def span(name: str, start_ns: int, energy_j: float, pass_index: int | None = None) -> dict[str, Any]:
        times = {"start_ns": start_ns, "end_ns": start_ns + 1, "clock": 0}
        return {"name": name, "restart": 0, "pass": pass_index, "energy_j": energy_j, **times}

    start = [span("launch", 0, 100.0), span("load", 1, 700.0)]
    rows = [
        row(
            f"{study}{number}",
            {
                "study": {"study_id": study, "attempt": 1},
                "spans": [*start, span("pass", 2 + number, 200.0, 0)],
                "energy.phases": None,
            },
        )
        for study in ("one", "two")
        for number in range(2)
    ]
    assert said("phases", rows) == "Loading took 58% of all joules drawn here, each span counted once."


CHANGE = "From 1 to 8 requests in flight, joules per output token change by "
HALVED = [(1, 4.0), (8, 2.0)]


@pytest.mark.parametrize(
    ("changes", "line", "sentence"),
    [
        ({}, [], f"{CHANGE}-67%."),
        # From the least at 1 to the most at 8 they would change by -33%.
        ({LENGTH: 512}, HALVED, ""),
        ({MODEL: "n"}, HALVED, f"{CHANGE}-67% (fake, m, 1 GPU)."),
        ({"environment.gpu_count": 2}, HALVED, f"{CHANGE}-67% (fake, 1 GPU)."),
        ({MODEL: "n"}, [*HALVED, (4, 3.0)], f"{CHANGE}-50% (fake, n, 1 GPU)."),
        ({MODEL: "n"}, [*HALVED, (4, 3.0), (8, 1.0)], f"{CHANGE}-67% (fake, m, 1 GPU)."),
    ],
)
def test_a_change_is_that_of_one_line_of_the_chart(
    changes: Mapping[str, Any], line: Sequence[tuple[int, float]], sentence: str
) -> None:
    """The longest, named where there are several, and none with two figures above one x."""
    rows = [costing(f"a{batch}", joules, {BATCH: batch, MODEL: "m"}) for batch, joules in ((1, 3.0), (8, 1.0))]
    rows += [costing(f"b{batch}", joules, {BATCH: batch, MODEL: "m", **changes}) for batch, joules in line]
    assert said("batch", rows) == sentence


def test_a_change_over_gpus_is_told_alike() -> None:
    """Twice the GPUs cost half as much again."""
    rows = [costing(f"{gpus}", joules, {"environment.gpu_count": gpus}) for gpus, joules in ((1, 1.0), (2, 1.5))]
    assert said("scaling", rows) == "From 1 to 2 GPUs used, joules per output token change by +50%."
