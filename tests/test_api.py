"""What `import wattdock` offers: measure, open and tabulate results; a real runner with the fake engine."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from make.stored import bundled, stored
from refused import raises
from seams.records import TokenSeries

import wattdock
from wattdock.errors import RunnerError, StoreError
from wattdock.records import PassRecord, RequestRecord, disk

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = Path(__file__).resolve().parents[1]
NOTEBOOK = REPO / "examples/notebook.ipynb"
FAKE = {
    "backend": "fake",
    "model": "shape:tiny-llama",
    "runner_python": sys.executable,
    "workload": {"batch_size": 2, "max_output_tokens": 4, "prompts": {"count": 2}},
    "repeats": {"passes": 1},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with a home of its own."""
    folder = tmp_path_factory.mktemp("api")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("WATTDOCK_HOME", str(folder / "home"))
        patch.setenv("WATTDOCK_RUNNERS", str(REPO / "tests/runners"))
        yield folder


@pytest.fixture(scope="module")
def measured(place: Path) -> wattdock.Results:
    """A study of two batch sizes."""
    return wattdock.run({"defaults": FAKE, "sweep": {"workload.batch_size": (1, 2)}}, quiet=True)


@pytest.mark.slow
def test_a_study_is_measured_and_its_tables_hold_what_was_measured(measured: wattdock.Results) -> None:
    """In the study's order; a row per request, step and sample of all restarts."""
    assert [result.data.config.workload.batch_size for result in measured] == [1, 2]
    result = measured[1]
    assert repr(result) == f"Result({result.folder.name}, ok)"
    assert any("output tokens/s" in line for line in repr(measured).splitlines())
    requests = result.requests(frame="arrow")
    assert (requests.num_rows, pa.compute.sum(requests["output_tokens"]).as_py()) == (2, 8)
    assert result.steps(frame="arrow")["end_ns"].null_count == 0
    assert "output_tokens" in result.timeline(frame="arrow")["series"].to_pylist()
    assert [chart.to_dict()["$schema"][:5] for chart in (result.plot(), measured.plot())] == ["https", "https"]
    assert measured.table(frame="arrow")["batch_size"].to_pylist() == [1, 2]


@pytest.mark.slow
def test_stored_results_are_opened_by_name_and_bundle_and_tabulated_by_condition(
    measured: wattdock.Results, place: Path
) -> None:
    """The same names as the command's; without a name, all results of the folder. A part of a study is told."""
    last = measured[1].folder.name
    assert [result.folder.name for result in wattdock.load(last)] == [last]
    bundle = bundled(measured[1].folder, place / "b.tar").path
    with pytest.warns(UserWarning, match="lacks the results of 1 of 2 declared .* not here: batch_size=1"):
        [from_bundle] = wattdock.load(bundle)
    with pytest.warns(UserWarning, match="lacks"):
        assert wattdock.results(bundle, "batch_size = 1", frame="arrow").num_rows == 0
    assert from_bundle.requests(frame="arrow") == measured[1].requests(frame="arrow")
    for name, where, count in (
        *((None, None, 2), (None, "batch_size > 1 -- comment", 1), (last, None, 1)),
        (measured[0].data.study.study_id if measured[0].data.study else "", "backend = 'fake'", 2),
    ):
        assert wattdock.results(name, where, frame="arrow").num_rows == count


@pytest.mark.slow
def test_a_table_is_a_frame_of_the_library_that_is_there(measured: wattdock.Results, block: Any) -> None:
    """Pandas first, then Arrow; integers stay whole where one is missing."""
    pandas = pytest.importorskip("pandas", reason="pandas, which Zeus brings, is not installed")
    frame = wattdock.results()
    assert isinstance(frame, pandas.DataFrame)
    assert str(frame["gpu_count"].dtype) == "Int64"
    block("pandas")
    assert isinstance(wattdock.results(), pa.Table)


def test_a_hash_of_64_bits_stays_whole_where_another_one_is_missing(tmp_path: Path) -> None:
    """A number of 53 bits would be no prompt's hash, or another prompt's."""
    pytest.importorskip("pandas", reason="pandas, which Zeus brings, is not installed")
    folder, largest = stored(tmp_path / "results"), 2**64 - 1
    requests = RequestRecord(0, 1, prompt_hash=largest), RequestRecord(1, 1, prompt_hash=None)
    tokens = TokenSeries(*np.zeros((2, 0), dtype=np.int64))
    [result] = wattdock.load(folder)
    record = result.stored.restarts()[0]
    run_pass = PassRecord(record.spans[0], requests, tokens, 0, None, None, 0)
    disk.write(replace(record, spans=record.spans[1:], passes=(run_pass,)), folder / "restarts/0")
    assert int(result.requests()["prompt_hash"][0]) == largest


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make modules look as if they were not installed."""

    def hide(*names: str) -> None:
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)

    return hide


@pytest.mark.slow
def test_what_fails_raises_its_error_or_where_others_were_measured_warns(place: Path) -> None:
    """All are stored; nobody takes a study of failures for one of figures."""
    broken = FAKE | {"fake": {"load_fault": "refuse"}}
    with raises(RunnerError, "load:"):
        wattdock.run(broken, "failed", quiet=True)
    study = {"experiments": [broken, FAKE | {"name": "sound"}]}
    with pytest.warns(UserWarning, match="fake") as warned:
        both = wattdock.run(study, "failed", quiet=True)
    assert warned[0].filename == __file__
    assert [result.data.status for result in both] == ["failed", "ok"]
    (both[1].folder / "restarts/0/requests.parquet").write_bytes(b"")
    with raises(StoreError, "requests.parquet"):
        both[1].requests()


@pytest.mark.parametrize(
    ("call", "values"),
    [
        (lambda: wattdock.run({"workload": {"batch_size": 0}}), "settings: workload.batch_size: not 0"),
        (lambda: wattdock.run({"workload": {"batch": 1}}), "settings: workload.batch: 'batch'"),
        (lambda: wattdock.run({"model": {1, 2}}), "settings: set"),
        (lambda: wattdock.run(settings={"workload.seed": "x"}), "settings['workload.seed']: 'x'"),
        (lambda: wattdock.run("absent.yaml"), "absent.yaml:"),
        (lambda: wattdock.load("absent"), "absent:"),
        (lambda: wattdock.results(where="nope = 1"), 'where: "nope"'),
        (lambda: wattdock.results(where="true); DROP TABLE results; SELECT (1"), "SELECT"),
        (lambda: wattdock.results(frame="numpy"), "frame='numpy': auto, arrow"),  # type: ignore[arg-type]
        (lambda: wattdock.load("results").plot("pie"), "'pie'; intervals,"),
        (lambda: wattdock.load("results").plot("table"), "'table'; intervals,"),
        (lambda: wattdock.load("results").plot("pareto"), "joules"),
    ],
)
@pytest.mark.slow
def test_a_mistake_is_one_line_of_an_error_of_ours(measured: wattdock.Results, call: Any, values: str) -> None:
    """As the command would print it, with the setting or the argument that was wrong."""
    with raises(wattdock.WattdockError, *values.split()) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_what_is_offered_is_little_and_there() -> None:
    """Another name is an error, as in any module."""
    assert len(wattdock.__all__) <= 10
    assert all(hasattr(wattdock, name) for name in wattdock.__all__)
    with raises(AttributeError, "'messure'"):
        _ = wattdock.messure  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.skipif(
    not (REPO / "runners/pytorch/.venv/bin/python").exists(), reason="runners/pytorch/.venv is not there: `make test`"
)
def test_the_notebook_runs_from_its_first_cell_to_its_last(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell's last line is shown; none of its figures is kept in the file."""
    (place / "notebook").mkdir()
    monkeypatch.chdir(place / "notebook")
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    shown = []
    for cell in cells:
        *body, last = ast.parse("".join(cell["source"])).body
        rest = [] if isinstance(last, ast.Expr) else [last]
        exec(compile(ast.Module([*body, *rest], []), NOTEBOOK.name, "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names))
    table, intervals, reason, first_ms, timeline = shown
    assert len(table) == 2
    assert reason
    assert len(first_ms) == 12
    assert all(chart.to_dict() for chart in (intervals, timeline))
    assert [cell for cell in cells if cell["outputs"]] == []


def test_the_notebook_prints_the_corrected_figure_with_its_interval() -> None:
    """Of a board's kept records, as this version analyses them."""
    [lines] = [
        "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if "budget" in str(cell["source"])
    ]
    *body, last = ast.parse(lines).body[1:]
    assert isinstance(last, ast.Expr)
    [kept] = wattdock.load(REPO / "docs/measurements/data/smollm2-h200.tar", again=True)
    names: dict[str, Any] = {"result": kept}
    exec(compile(ast.Module(body, []), NOTEBOOK.name, "exec"), names)
    said = eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)
    assert said == "0.3287 J per output token [0.3272, 0.3301]"
