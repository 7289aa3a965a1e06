"""What is drawn as one series and what it looks like: models apart, and no two series of a chart alike."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from matplotlib.figure import Figure as Drawing
from report_rows import row, with_timeline

from wattdock.records import COUNTER
from wattdock.reports.figures import KINDS
from wattdock.reports.html.charts import charts
from wattdock.reports.points import points
from wattdock.reports.style import LOOKS, PALETTE, dot_styles, line_styles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from wattdock.reports.points import Point

UUID = "GPU-00000000-0000-0000-0000-00000000000{}"


def study(
    *, backends: Sequence[str] = ("fake",), models: Sequence[str], batches: Sequence[int], gpus: Sequence[int] = (1,)
) -> list[Point]:
    """Return a point per combination; more requests in flight are quicker and dearer."""
    every = list(product(backends, models, batches, gpus))
    rows = [
        row(
            f"{at:02}",
            {
                "config.backend": backend,
                "environment.model.name": model,
                "config.workload.batch_size": batch,
                "environment.gpu_count": count,
                "performance.output_tokens_per_s": 100.0 * batch + at,
            },
            restarts=[1.0 + batch / 10 + at / 1000],
        )
        for at, (backend, model, batch, count) in enumerate(every)
    ]
    return points(rows)


def on_paper(kind: str, shown: Sequence[Point]) -> Axes:
    """Return the first panel of a figure for a paper."""
    drawing = Drawing()
    KINDS[kind](drawing, shown)
    return drawing.axes[0]


def drawn_on_paper(axes: Any) -> dict[str, Any]:
    """Return the first line of what the legend names, by its name."""
    return {name: drawn.lines[0] for drawn, name in zip(*axes.get_legend_handles_labels(), strict=True)}


def on_page(key: str, shown: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the series of one of a page's charts."""
    [spec] = [one.spec for one in charts(shown) if one.key == key]
    assert spec
    data: list[dict[str, Any]] = spec["data"]
    return data


def marked(one: dict[str, Any]) -> tuple[str, str]:
    """Return a page's series' colour and marker."""
    symbol: str = one["marker"]["symbol"][0]
    return one["marker"]["color"], symbol.removesuffix("-open")


@pytest.mark.parametrize(("kind", "varied"), [("batch", "batches"), ("scaling", "gpus")])
def test_models_are_lines_of_their_own_on_paper_and_on_the_page(kind: str, varied: str) -> None:
    """Two models at 1, 2 and 4 are two lines of three points, not one that jumps between them."""
    counts: dict[str, Any] = {"batches": [1], "gpus": [1], varied: [1, 2, 4]}
    both = study(models=["small", "large"], **counts)
    lines = drawn_on_paper(on_paper(kind, both))
    shared = "1 GPU" if kind == "batch" else "batch 1"
    assert list(lines) == [f"fake, large, {shared}", f"fake, small, {shared}"]
    assert [list(line.get_xdata()) for line in lines.values()] == [[1, 2, 4], [1, 2, 4]]
    assert [(one["name"], one["x"]) for one in on_page(kind, both) if one["showlegend"]] == [
        (name, [1, 2, 4]) for name in lines
    ]
    assert list(drawn_on_paper(on_paper(kind, study(models=["small"], **counts)))) == [f"fake, {shared}"]


def test_no_two_lines_of_two_backends_at_four_batch_sizes_look_alike() -> None:
    """Eight lines with six colours and six looks: neither repeats in step with the other."""
    shown = study(backends=["pytorch", "vllm"], models=["small"], batches=[1, 2, 4, 8], gpus=[1, 2])
    lines = drawn_on_paper(on_paper("scaling", shown))
    assert len(lines) == 8
    assert len({(line.get_color(), line.get_marker()) for line in lines.values()}) == 8
    own = [one for one in on_page("scaling", shown) if one["showlegend"]]
    assert len({(one["line"]["color"], one["line"]["dash"]) for one in own}) == len(own) == 8
    assert len({marked(one) for one in own}) == 8
    every = line_styles(map(str, range(len(PALETTE) * len(LOOKS))))
    assert len(set(every.values())) == len(every) == 36


def test_models_have_markers_and_fronts_of_their_own() -> None:
    """Two of one backend on one GPU are told apart without pointing at them; the front's dash is the model's."""
    shown = study(models=["small", "large"], batches=[1, 2])
    assert on_page("pareto", shown)[0]["type"] == "scatter"
    dots = [one for one in on_page("pareto", shown) if one["mode"] == "markers"]
    assert [one["name"] for one in dots] == ["fake, large, 1 GPU", "fake, small, 1 GPU"]
    assert len({marked(one) for one in dots}) == 2
    joined = [one for one in on_page("pareto", shown) if one["mode"] == "lines"]
    assert len({one["line"]["dash"] for one in joined}) == len(joined) == 2
    axes = on_paper("pareto", shown)
    lines = drawn_on_paper(axes)
    assert list(lines) == ["fake, large, 1 GPU", "fake, small, 1 GPU"]
    assert len({line.get_marker() for line in lines.values()}) == 2
    assert len({line.get_linestyle() for line in axes.lines if line.get_marker() == "None"}) == 2


def test_more_models_than_markers_take_another_colour_and_backends_share_none() -> None:
    """Two backends of fourteen models on one GPU: all different."""
    styles = dot_styles(product(["pytorch", "vllm"], [1], [f"model {at}" for at in range(14)]))
    assert len(set(styles.values())) == len(styles) == 28
    pytorch, vllm = ({colour for one, (colour, _) in styles.items() if one[0] == name} for name in ("pytorch", "vllm"))
    assert pytorch.isdisjoint(vllm)


def test_no_two_of_eight_gpus_look_alike_over_time(tmp_path: Path) -> None:
    """Six colours are not enough, so that the seventh differs from the first in its dash."""
    uuids = [UUID.format(at) for at in range(8)]
    [host] = row("one").result.model_dump(mode="json")["environment"]["host_gpus"]
    gpus = [host | {"index": at, "uuid": uuid} for at, uuid in enumerate(uuids)]
    course = [at * 30_000.0 for at in range(20)]
    counters: dict[tuple[str | None, str], list[float]] = {(uuid, COUNTER): course for uuid in uuids}
    one = with_timeline(row("one", {"environment.host_gpus": gpus}), tmp_path, counters)
    axes = on_paper("timeline", points([one]))
    lines = {str(line.get_label()): (line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert sorted(lines) == [f"GPU {at}" for at in range(8)]
    assert len(set(lines.values())) == 8
