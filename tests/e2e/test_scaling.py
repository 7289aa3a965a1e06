"""`wattdock scaling`, as a user runs it, over stored results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from scaled_results import document
from unprivileged import give_to_user

if TYPE_CHECKING:
    from pathlib import Path

    from command import Command


@pytest.fixture
def stored(wattdock: Command) -> Path:
    """Return a folder with one, two and four GPUs of tensor parallelism, and a failed row."""
    folder = wattdock.folder / "results"
    for gpus in (1, 2, 4):
        split = {"tensor_parallel_size": gpus} if gpus > 1 else {}
        made = document(split, [100.0 * gpus**0.9, 101.0 * gpus**0.9], [600.0 * gpus, 601.0 * gpus])
        _write(folder / f"20261121T10000{gpus}-vllm-0000000{gpus}", made)
    _write(folder / "20261121T100009-vllm-00000009", document({}, [1.0], [1.0]) | {"status": "failed"})
    give_to_user(folder)
    return folder


def _write(folder: Path, made: dict[str, object]) -> None:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(made))


def test_the_table_holds_curves_the_refused_fit_and_the_cheapest_split(wattdock: Command, stored: Path) -> None:
    """And says which result is on no curve."""
    done = wattdock("scaling", stored.name)
    assert done.returncode == 0, done.stderr
    assert "Amdahl, tensor: not fitted: 3 GPU counts (1, 2, 4); a fit needs at least 4" in done.stdout
    assert "fewest joules per token: one GPU, 5.975 J/token; next is TP=2, +7.2%" in done.stdout
    assert "left out: 20261121T100009-vllm-00000009: status failed" in done.stdout


def test_json_and_a_figure_hold_the_same_curves(wattdock: Command, stored: Path) -> None:
    """For a notebook, and for a paper."""
    done = wattdock("scaling", stored.name, "--json", "--plot", "scaling.png")
    assert done.returncode == 0, done.stderr
    [setting] = json.loads(done.stdout)["settings"]
    [curve] = setting["curves"]
    assert [scaled["point"]["gpus"] for scaled in curve["points"]] == [1, 2, 4]
    assert curve["points"][2]["efficiency"]["value"] == pytest.approx(4**-0.1, rel=1e-3)
    assert (wattdock.folder / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_or_compared_is_one_line(wattdock: Command, stored: Path) -> None:
    """Exit code 2 for what was written, 7 for what is not there."""
    for args, code, why in (
        (("results", "--plot", "scaling.gif"), 2, "figures are written as .pdf, .svg, .png"),
        (("results/20261121T100009-vllm-00000009",), 2, "none of 1 results can be compared; all: status failed"),
        (("nowhere",), 7, "nowhere: no such folder"),
    ):
        done = wattdock("scaling", *args)
        assert done.returncode == code
        assert why in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert stored.exists()
