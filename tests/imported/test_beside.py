"""Rows that others published beside own results: marked, hollow and on no front."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from make.kept import kept as made
from make.rows import row

from wattdock.imported import Imported
from wattdock.reports.charts import chart

if TYPE_CHECKING:
    from conftest import Called

DATA = Path(__file__).resolve().parents[2] / "docs/measurements/data"
SERVED, SECOND = DATA / "smollm2-h200.tar", DATA / "smollm2-h200-second.tar"
# Faster and cheaper than the kept figure, so that a front would take them; the last tells no joules.
BETTER = [
    {
        "model_id": "smollm2-135m-instruct",
        "gpu_model": "H100",
        "num_gpus": 1,
        "max_num_seqs": in_flight,
        "output_throughput_tokens_per_sec": 5000.0,
        "energy_per_token_joules": joules,
    }
    for in_flight, joules in ((8, 0.2), (16, 0.1), (32, 0.0))
]


# Files of the same rows.
NAMES = ("x.json", "x.svg")


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """Return a file of ML.ENERGY's."""
    file = tmp_path / "chat.json"
    file.write_text(json.dumps({"task": "chat", "configurations": BETTER}), encoding="utf-8")
    return file


def drawn(beside: list[Imported]) -> list[dict[str, Any]]:
    """Return the rows that a chart of a result draws."""
    made: dict[str, Any] = chart("pareto", [row("own", restarts=[1.0, 1.01, 1.02])], beside).to_dict()
    [rows] = made["datasets"].values()
    return list(rows)


def test_imported_rows_are_drawn_hollow_and_on_no_front() -> None:
    """Own rows stay as they were; many models share a series for their origin."""
    silent = Imported(origin="ML.ENERGY", link="x.json#/0", model="m", gpu="H100", gpu_count=1.0)
    told = silent.model_copy(update={"output_tokens_per_s": 9e9, "energy_per_output_token_j": 1e-9})
    alone, [imported, own] = drawn([]), drawn([silent, told])
    assert [own] == alone
    assert own["unbeaten"] == "yes"
    assert (imported["experiment"], imported["unbeaten"], imported["publishable"]) == ("x.json#/0", "no", "no")
    assert imported["series"] == "imported: ML.ENERGY, m, 1 × H100"
    assert [value for name, value in imported.items() if name.endswith((" low", " high"))] == [None] * 4
    many = drawn([told.model_copy(update={"model": f"m{at}"}) for at in range(7)])
    assert {other["series"] for other in many[:-1]} == {"imported: ML.ENERGY"}


def test_the_caption_names_the_origin(called: Called, others: Path, tmp_path: Path) -> None:
    """A figure that shows rows of others says so."""
    ended = called("plot", "pareto", SERVED, "--beside", others, "-o", tmp_path / "fig.svg")
    assert "imported from ML.ENERGY, by others' account" in ended.stdout
    assert "imported: ML.ENERGY" in (tmp_path / "fig.svg").read_text(encoding="utf-8").replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("kind", "result"), [("frontier", SERVED), ("table", SERVED), ("pareto", DATA / "train-two-h200.tar")]
)
def test_other_charts_refuse_rows_of_others(
    called: Called, others: Path, tmp_path: Path, kind: str, result: Path
) -> None:
    """They tell neither scores nor what a command counts."""
    file = tmp_path / ("x.md" if kind == "table" else "x.svg")
    ended = called("plot", kind, result, "--beside", others, "-o", file)
    assert (ended.returncode, ended.stderr.count("\n"), file.exists()) == (2, 1, False)
    assert f"{kind}: others' rows tell joules and speed of output tokens only" in ended.stderr


def test_rows_without_figures_are_refused(called: Called, tmp_path: Path) -> None:
    """A chart that would lack all of them is not drawn."""
    file = tmp_path / "bench.json"
    file.write_text('{"model_id": "m", "total_output_tokens": 1, "output_throughput": 1, "duration": 1}')
    ended = called("plot", "pareto", SERVED, "--beside", file, "-o", tmp_path / "x.svg")
    assert "no row of others tells both joules and speed" in ended.stderr


def test_an_unknown_kind_is_named_first(called: Called, others: Path, tmp_path: Path) -> None:
    """Not as a chart that shows no rows of others."""
    ended = called("plot", "zzz", SERVED, "--beside", others, "-o", tmp_path / "x.svg")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "KIND zzz is not one of intervals, pareto" in ended.stderr


def test_two_own_results_stand_above_rows_of_others(called: Called, others: Path) -> None:
    """The table of `audit`, marked; a comparison has no such rows."""
    lines = called("audit", others, "--beside", SERVED, "--beside", SECOND).stdout.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("imported from"))
    assert [line.split()[0] for line in lines[first + 1 : first + 6]] == ["own", "own", *["ML.ENERGY"] * 3]
    assert "3 rows of others, none publishable" in lines[-1]


@pytest.mark.parametrize(
    "words",
    [
        ("form", "annex-xi", "own.tar", "-o", "link"),
        ("form", "annex-xi", "own.tar:vllm smollm2-135m-instruct closed 160", "-o", "./link"),
        ("form", "annex-xi", "own.tar", "--host-readings", "w.md", "-o", "w.md"),
        ("plot", "table", "own", "-o", "own/result.json"),
        ("plot", "pareto", "own.tar", "--beside", "x.svg", "-o", "x.svg"),
        ("report", "own.tar", "-o", "link"),
    ],
)
def test_no_command_replaces_what_it_reads(
    called: Called, others: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """One line; the file is whole."""
    monkeypatch.chdir(tmp_path)
    kept = {name: (SERVED if name == "own.tar" else others).read_bytes() for name in ("own.tar", *NAMES)}
    kept["w.md"] = b"time,watts\n1,700\n2,701\n3,700\n"
    for name, content in kept.items():
        Path(name).write_bytes(content)
    made(Path("own"))
    kept["own/result.json"] = Path("own/result.json").read_bytes()
    Path("link").symlink_to("own.tar")
    ended = called(*words)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert "would replace a file that the command reads; name another file to write" in ended.stderr
    assert {name: Path(name).read_bytes() for name in kept} == kept
