"""What a chart draws, on the page and on paper alike: series apart, nothing left out, fonts that publishers take."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from make.kept import SERVED, SPLITS, TRAINED
from make.rows import row, with_timeline
from refused import raises
from seams.console import Kind
from seams.records import COUNTER
from seams.reports import paper, work_text

from wattdock import load
from wattdock.errors import ConfigError
from wattdock.reports import draw, point_cells, points_of
from wattdock.reports.charts import CHARTS
from wattdock.store import TABLES, load_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conftest import Called

    from wattdock.store import StoredResult

# A study that asked no questions has no frontier.
OF_RESULTS = [kind for kind in CHARTS if kind not in ("timeline", "frontier")]
UUID = "GPU-00000000-0000-0000-0000-00000000000{}"


def answered(score: float, cost_j: float, *, width: float = 0.01) -> dict[str, Any]:
    """Return what came of questions: a score and joules per correct answer, with intervals that reach so far."""
    overall = {
        "name": "all",
        "items": 120,
        "score": score,
        "score_error": width / 2,
        "output_tokens": 1000,
        "thought_tokens": 0,
        "energy_j": 100.0,
        "energy_per_item_j": cost_j * score,
        "energy_per_correct_j": cost_j,
        "interval": [cost_j * (1 - width), cost_j * (1 + width)],
    }
    return {"overall": overall, "tasks": [], "categories": [], "failures": []}


def study(
    *, backends: Sequence[str] = ("fake",), models: Sequence[str], batches: Sequence[int], gpus: Sequence[int] = (1,)
) -> list[StoredResult]:
    """Return a result per combination; more requests in flight are quicker and dearer."""
    return [
        row(
            f"{at:02}",
            {
                "config.backend": backend,
                "environment.backend": backend,
                "environment.model.name": model,
                "environment.runner.parallelism": {"kind": "tensor_parallel", "tensor_parallel_size": count},
                "config.workload.batch_size": batch,
                "environment.gpu_count": count,
                "performance.output_tokens_per_s": 100.0 * batch + at,
                "quality": answered(0.5 + at / 1000, 10.0 + batch),
            },
            restarts=[1.0 + batch / 10 + at / 1000],
        )
        for at, (backend, model, batch, count) in enumerate(product(backends, models, batches, gpus))
    ]


def spec(kind: str, rows: Sequence[StoredResult]) -> dict[str, Any]:
    made: dict[str, Any] = CHARTS[kind][1](points_of(rows)).to_dict()
    return made


def looks(found: Any, channels: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return how each series is drawn by the first layer that has all these channels."""
    if isinstance(found, list):
        return next((look for part in found if (look := looks(part, channels))), {})
    if not isinstance(found, dict):
        return {}
    encoding = found.get("encoding", {})
    scales = [encoding.get(channel, {}).get("scale", {}) for channel in channels]
    if all("domain" in scale for scale in scales):
        values = zip(*(map(str, scale["range"]) for scale in scales), strict=True)
        return dict(zip(scales[0]["domain"], values, strict=True))
    return looks(list(found.values()), channels)


@pytest.mark.parametrize(("kind", "varied"), [("batch", "batches"), ("scaling", "gpus")])
def test_models_are_lines_of_their_own(kind: str, varied: str) -> None:
    """Two models at 1, 2 and 4 are two lines of three points, not one that jumps between them."""
    counts: dict[str, Any] = {"batches": [1], "gpus": [1], varied: [1, 2, 4]}
    chart = CHARTS[kind][1](points_of(study(models=["small", "large"], **counts)))
    shared = "1 GPU" if kind == "batch" else "tensor"
    drawn: dict[str, list[int]] = {}
    for made in chart.data.values:
        drawn.setdefault(made["series"], []).append(made["requests in flight" if kind == "batch" else "GPUs used"])
    assert drawn == {f"fake, {model}, {shared}": [1, 2, 4] for model in ("small", "large")}


@pytest.mark.parametrize(
    ("kind", "channels", "rows", "count"),
    [
        (
            "scaling",
            ("color", "strokeDash"),
            study(backends=["pytorch", "vllm"], models=["m"], batches=[1, 2, 4, 8], gpus=[1, 2]),
            8,
        ),
        ("pareto", ("color", "shape"), study(models=["small", "large"], batches=[1, 2]), 2),
        (
            "pareto",
            ("color", "shape"),
            study(backends=["pytorch", "vllm"], models=[f"{at:02}" for at in range(14)], batches=[1]),
            28,
        ),
    ],
)
def test_no_two_series_look_alike(kind: str, channels: Sequence[str], rows: list[StoredResult], count: int) -> None:
    """Where colours or shapes repeat, the other one moves on; no two backends share a colour."""
    found = looks(spec(kind, rows), channels)
    assert len(found) == len(set(found.values())) == count
    colours = {
        name: {look[0] for series, look in found.items() if series.startswith(name)} for name in ("pytorch", "vllm")
    }
    assert colours["pytorch"].isdisjoint(colours["vllm"])


def test_no_two_of_eight_gpus_look_alike_over_time(tmp_path: Path) -> None:
    """Six colours are not enough: the seventh differs from the first in its dash, and what was not used is grey."""
    uuids = [UUID.format(at) for at in range(8)]
    [host] = row("one").result.model_dump(mode="json")["environment"]["host_gpus"]
    gpus = [host | {"index": at, "uuid": uuid} for at, uuid in enumerate(uuids)]
    counters: dict[tuple[str | None, str], list[float]] = {
        (uuid, COUNTER): [at * 30e3 for at in range(20)] for uuid in uuids
    }
    counters |= {(None, f"package-{at}"): [at * 30.0 for at in range(20)] for at in range(2)}
    for used in (1, 8):
        changes = {"environment.host_gpus": gpus, "environment.gpu_uuids": uuids[:used]}
        found = looks(
            spec("timeline", [with_timeline(row("one", changes), tmp_path, counters)]), ("color", "strokeDash")
        )
        assert len(found) == len(set(found.values())) == 10
        assert sum(name.endswith(", not used") for name in found) == 8 - used
        assert sum(name.endswith("(host, RAPL)") for name in found) == 2


def test_gpus_of_two_nodes_are_lines_of_their_own(tmp_path: Path) -> None:
    """Each node counts its GPUs from 0; under one name, two of them would be one line that jumps between both."""
    uuids = [UUID.format(at) for at in range(4)]
    [host] = row("one").result.model_dump(mode="json")["environment"]["host_gpus"]
    node = {"name": "10.0.0.2:7777", "host_name": "other", "boot_id": "2", "gpu_uuids": uuids[2:]}
    changes = {
        "environment.host_gpus": [host | {"index": at % 2, "uuid": uuid} for at, uuid in enumerate(uuids)],
        "environment.gpu_uuids": uuids,
        "environment.nodes": [node],
    }
    counters: dict[tuple[str | None, str], list[float]] = {
        (uuid, COUNTER): [at * 30e3 for at in range(20)] for uuid in uuids
    }
    found = looks(spec("timeline", [with_timeline(row("one", changes), tmp_path, counters)]), ("color", "strokeDash"))
    own = ["GPU 0", "GPU 1"]
    assert [*found] == [*own, *(f"{name} of 10.0.0.2:7777" for name in own)]


def test_results_stand_in_the_order_of_the_tables(tmp_path: Path) -> None:
    """Also where only some have several restarts, whose strokes are a layer of their own."""
    rows = [row("first", restarts=[1.0]), row("second"), row("third", restarts=[1.0])]
    draw("intervals", rows, tmp_path / "drawn.svg")
    found = re.findall(r"translate\(-7,([\d.]+)\)[^>]*>(first|second|third)<", (tmp_path / "drawn.svg").read_text())
    downwards = sorted(found, key=lambda label: float(label[0]))
    assert [name for _, name in downwards] == [point.label for point in points_of(rows)] == ["first", "second", "third"]


def test_intervals_fill_the_axis_which_says_that_it_is_not_from_0(tmp_path: Path) -> None:
    """Half a percent is seen, in rows as high as their names; a figure alone has an axis from 0."""
    name = "vllm smollm2-135m-instruct closed 160 version=0.26.0 board=GPU-{}"
    restarts = [[0.3266, 0.3286, 0.3306], [0.3295, 0.3315, 0.3335], [0.3314, 0.3334, 0.3354]]
    rows = [row(name.format(at), restarts=costs) for at, costs in enumerate([*restarts, *restarts[:2]])]
    draw("intervals", rows, tmp_path / "near.svg")
    near = (tmp_path / "near.svg").read_text()
    ticks = [float(text) for text in re.findall(r">(\d\.\d+)<", near)]
    assert (min(ticks) > 0.31, max(ticks) < 0.35, "J/output token (GPU boards), not from 0" in near) == (True,) * 3
    assert float(re.findall(r'height="([\d.]+)"', near)[0]) < 310
    draw("intervals", [row("alone", restarts=[0.33])], tmp_path / "alone.svg")
    alone = (tmp_path / "alone.svg").read_text()
    assert (">0.0<" in alone or ">0.00<" in alone, "not from 0" in alone) == (True, False)


def test_the_scaling_chart_is_what_scaling_shows(called: Called, tmp_path: Path) -> None:
    """Two finished splits over two GPUs; two interrupted results are on no curve, and the printed note names them."""
    shown = json.loads(called("scaling", SPLITS, "--json").stdout)
    done = called("plot", "scaling", SPLITS, "-o", tmp_path / "x.svg")
    assert len(shown["left_out"]) == 2
    # A bundle cannot be resumed.
    assert "left out: " + ", ".join(f"{name} (interrupted)" for name in shown["left_out"]) in done.stdout
    chart = load(SPLITS).plot("scaling")
    speed, energy = "output tokens/s", "J/output token (GPU boards)"
    drawn = {row["series"]: (row["experiment"], row["GPUs used"], row[energy], row[speed]) for row in chart.data.values}
    [setting] = shown["settings"]
    assert drawn == {
        f"vllm, {point['kind']}": (
            point["split"],
            2,
            *(pytest.approx(point[name]["value"], rel=1e-5) for name in ("j_per_token", "tokens_per_s")),
        )
        for point in setting["points"]
    }
    assert drawn.keys() == {"vllm, data", "vllm, pipeline"}
    assert all(name in chart.description for name in shown["left_out"])


def test_commands_are_curves_of_their_own() -> None:
    """Two ways of training on one and two GPUs, named by what tells them apart, which the number of GPUs does not."""
    drawn = [(row["series"], row["GPUs used"]) for row in load(TRAINED).plot("scaling").data.values]
    modes = ("measure, mode=--fsdp, command", "measure, mode=--seed=1, command")
    assert sorted(drawn) == [(mode, gpus) for mode in modes for gpus in (1, 2)]


@pytest.mark.parametrize("kind", ["pareto", "intervals", "batch", "scaling"])
def test_joules_of_different_units_are_not_drawn_on_one_axis(called: Called, tmp_path: Path, kind: str) -> None:
    """Joules per sample and per output token; the page says so in the chart's place."""
    done = called("plot", kind, TRAINED, SERVED, SPLITS, "-o", tmp_path / "x.svg")
    assert (done.returncode, done.stderr.count("\n"), (tmp_path / "x.svg").exists()) == (2, 1, False)
    assert "nothing to draw on one axis: work in " in done.stderr
    assert {"samples", "output tokens"} <= set(re.findall(r"in (samples|output tokens)", done.stderr))


def test_the_help_lists_every_kind() -> None:
    """Without a chart's library, which takes long to import."""
    assert get_args(Kind) == (*CHARTS, "table")


def test_a_thousand_results_are_not_drawn_as_bars() -> None:
    """A wall of bars says nothing."""
    with raises(ConfigError, "121"):
        spec("intervals", study(models=["m"], batches=range(1, 122)))


@pytest.mark.parametrize("kind", OF_RESULTS)
def test_each_kind_is_a_chart_by_the_schema_of_charts(kind: str) -> None:
    """Nothing is held against it where a chart is drawn."""
    differing: list[dict[str, Any]] = [{}, {"environment.gpu_count": 2}, {"config.workload.batch_size": 64}]
    assert "$schema" in spec(kind, [row(f"{at}", changes) for at, changes in enumerate(differing)])


@pytest.mark.parametrize("kind", OF_RESULTS)
def test_each_kind_is_drawn_with_fonts_that_publishers_take(called: Called, gpu_study: Path, kind: str) -> None:
    """TrueType inside the PDF and no Type 3; one column of 89 mm wide."""
    done = called("plot", kind, gpu_study, "-o", f"{kind}.pdf")
    assert done.returncode == 0, done.stderr
    drawn = Path(f"{kind}.pdf").read_bytes()
    assert b"/FontFile2" in drawn
    assert b"/Type3" not in drawn
    assert b"/MediaBox [0 0 252 " in drawn


@pytest.mark.parametrize(("kind", "width"), [("intervals", "column"), ("pareto", "page"), ("batch", "column")])
def test_a_figure_is_as_wide_as_a_column_or_a_page_and_equal_figures_are_equal_files(
    tmp_path: Path, kind: str, width: str
) -> None:
    """252 or 518 points, whatever its labels take."""
    rows = study(backends=["pytorch", "vllm"], models=["a model of a rather long name", "small"], batches=[1, 2, 4])
    files = [tmp_path / name for name in ("one.svg", "two.svg")]
    for file in files:
        draw(kind, rows, file, width=width)
    # Numbers of clip paths count up within a process.
    first, two = (re.sub(r"clip\d+", "clip", file.read_text()) for file in files)
    assert first == two
    drawn = float(first.split('width="')[1].split('"')[0])
    assert drawn == pytest.approx(paper.WIDTHS[width], abs=1)


def test_a_timeline_is_of_one_result(called: Called, gpu_study: Path) -> None:
    """Several results have none."""
    measured = min(folder for folder in gpu_study.glob("2*") if load_result(folder).status == "ok")
    done = called("plot", "timeline", measured, "-o", "one.svg", "--width", "page")
    assert done.returncode == 0, done.stderr
    assert "pass 1" in Path("one.svg").read_text()
    several = called("plot", "timeline", gpu_study, "-o", "all.svg")
    assert (several.returncode, several.stderr.count("\n")) == (2, 1)
    assert any(file.name in several.stderr for file in gpu_study.glob("2*"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pie", "-o", "f.pdf"), "KIND pie is not one of intervals, "),
        (("pareto", "-o", "f.gif"), "f.gif: this is written as .pdf or .svg or .png"),
        (("table", "-o", "t.pdf"), "t.pdf: this is written as .md or .tex"),
        (("pareto", "-o", "f.pdf", "--width", "poster"), "--width poster is not one of column, page"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(called: Called, gpu_study: Path, words: tuple[str, ...], said: str) -> None:
    """What was written, and what could be."""
    kind, *options = words
    done = called("plot", kind, gpu_study, *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", ["pareto", "batch"])
def test_a_wide_interval_stays_on_a_logarithmic_axis(kind: str) -> None:
    """Restarts far apart give an interval that ends above 0, so that a logarithmic axis has its lower end."""

    def energy_axes(results: Sequence[StoredResult]) -> set[bool]:
        scales = re.findall(r"'field': 'J/output token[^']*', 'scale': (\{[^}]*\})", str(spec(kind, results)))
        return {"'log'" in scale for scale in scales}

    batches = {1: 50.0, 64: 0.5}
    rows = [
        row(f"{at}", {"config.workload.batch_size": batch}, restarts=[figure, figure * 1.001, figure])
        for at, (batch, figure) in enumerate(batches.items())
    ]
    wide = [row("9", {"config.workload.batch_size": 8}, restarts=[1.0, 9.0, 1.0])]
    assert energy_axes(rows + wide) == {True}
    assert energy_axes(rows[1:] + wide) == {False}


@pytest.mark.parametrize(("figures", "speeds", "logarithmic"), [
    ((50.0, 0.5), (900.0, 1000.0), {"J": True, "speed": False}),
    ((0.9, 1.0), (10.0, 1000.0), {"J": False, "speed": True}),
])  # fmt: skip
def test_each_axis_of_pareto_is_logarithmic_where_its_own_values_lie_decades_apart(
    figures: tuple[float, ...], speeds: tuple[float, ...], logarithmic: dict[str, bool]
) -> None:
    """Joules say nothing of the axis of tokens per second."""
    rows = [
        row(f"{at}", {"performance.output_tokens_per_s": speed}, restarts=[joules])
        for at, (joules, speed) in enumerate(zip(figures, speeds, strict=True))
    ]
    made = str(spec("pareto", rows))
    fields = {"J": r"J/output token[^']*", "speed": "output tokens/s"}
    scales = {
        name: set(re.findall(rf"'field': '{field}', 'scale': (\{{[^}}]*\}})", made)) for name, field in fields.items()
    }
    assert {name: {"'log'" in scale for scale in found} for name, found in scales.items()} == {
        name: {is_log} for name, is_log in logarithmic.items()
    }


def test_a_table_has_lengths_beside_joules_per_token_and_an_interval_of_joules_per_correct_answer() -> None:
    """Joules per output token of other lengths are another figure; one that reads as exact is taken as exact."""
    [point] = points_of([row("a", {"quality": answered(0.5, 2.745, width=0.1)}, restarts=[1.0])])
    cells = point_cells(point, TABLES["show"])
    assert cells["energy_per_correct_j"] == "2.75 [2.47, 3.02]"
    assert (cells["input_tokens"], cells["max_output_tokens"]) == ("512", "20")
    assert cells["score"] == "0.500 [0.402, 0.598]"


def test_results_of_different_work_are_series_of_their_own_and_a_note_says_so() -> None:
    """One of other lengths is no better for fewer joules; of one work the legend has no lengths."""
    pair = [row("a", restarts=[1.0]), row("b", {"config.workload.max_output_tokens": 8}, restarts=[0.5])]
    different, same = (str(spec("pareto", rows)) for rows in (pair, [pair[0], row("c", restarts=[0.5])]))
    assert ["of 2 different works" in made for made in (different, same)] == [True, False]
    assert [{text for text in ("20 out", "8 out") if f"in, {text}'" in made} for made in (different, same)] == [
        {"20 out", "8 out"},
        {"20 out"},
    ]


def test_a_limit_that_is_drawn_is_told_by_its_mean_and_range_as_plan_tells_it() -> None:
    """A mean alone would read as the most that an answer has."""
    drawn = {"distribution": "uniform", "min": 1, "max": 63}
    point = points_of([row("a", {"config.workload.max_output_tokens": drawn}, restarts=[1.0])])[0]
    assert point_cells(point, TABLES["paper"])["max_output_tokens"] == "32 (1 to 63)"
    assert ", 512 in, 32 (1 to 63) out at most; " in work_text(point.result)


@pytest.mark.parametrize("source", ["bundled", "synthetic", "prompts.jsonl"])
def test_settings_of_other_prompts_than_those_sent_are_no_conditions(source: str) -> None:
    """Text has no drawn lengths, and token ids no chat template."""
    conditions = row("a", {"config.workload.prompts.source": source}).result.conditions
    found = {name.removeprefix("setting: workload.prompts.") for name in conditions if ".prompts." in name}
    assert ("input_tokens" in found, "chat" in found) == (source == "synthetic", source != "synthetic")


def test_frontier_joins_what_no_other_result_is_shown_to_beat() -> None:
    """Cheapest, best, and one that differs from the best by less than both know; not what both beat."""
    asked = {"cheap": (0.4, 5.0), "best": (0.8, 9.0), "as good": (0.795, 9.05), "beaten": (0.38, 12.0)}
    rows = [row(name, {"quality": answered(*figures)}, restarts=[1.0]) for name, figures in asked.items()]
    made = CHARTS["frontier"][1](points_of(rows)).to_dict()
    first = next(iter(made["datasets"].values()))
    assert {each["experiment"]: each["unbeaten"] for each in first} == {
        "cheap": "yes",
        "best": "yes",
        "as good": "yes",
        "beaten": "no",
    }
