"""`examples/train/mirrored.py` on parts of a CPU, in an environment of its own."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest
from contract.test_compatibility import python_for
from spans.training import TRAIN, lie_within, marks_on_the_page, train

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS = ("--global-batch", "8", "--length", "32", "--steps", "3", "--epochs", "2")


@pytest.fixture(scope="module")
def tensorflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An interpreter that has TensorFlow; tests are skipped where that cannot be fetched."""
    folder = tmp_path_factory.mktemp("tensorflow")
    yield python_for(folder / "env", sys.executable, ("tensorflow-cpu>=2.18", "keras>=3.13"))
    # It holds 1.5 GB, and pytest keeps the folders of three runs.
    shutil.rmtree(folder)


def test_parts_of_a_cpu_learn_what_one_learns_and_marks_add_up(tensorflow: Path, tmp_path: Path) -> None:
    """Each has half of a step's samples; one process marks for both."""
    command: list[str | Path] = [tensorflow, TRAIN / "mirrored.py", *SETTINGS, "--cpu-devices"]
    one, two = (
        train([*command, parts, *more], tmp_path / parts)
        for parts, more in (("1", ()), ("2", ("--check-loss", "0.01")))
    )
    assert (one.code, two.code) == (0, 1), one.errors
    assert two.errors[-1].startswith("the loss fell from ")
    assert two.losses == pytest.approx(one.losses, rel=1e-5)
    assert one.losses[1] < 0.9 * one.losses[0]
    for training in (one, two):
        assert (training.work("samples"), training.work("tokens"), training.steps(0)) == (48, 48 * 32, 6)
        epochs, steps = training.spans(0, "epoch"), training.spans(0, "step")
        assert (len(epochs), len(steps), len(training.spans(0, "load"))) == (2, 6, 1)
        assert lie_within(steps, epochs)


def test_the_callback_on_the_page_counts_what_is_trained(tensorflow: Path, tmp_path: Path) -> None:
    """Three steps of the 64 samples that it names."""
    program = f"""
import keras, numpy
{marks_on_the_page("keras.callbacks")}
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(numpy.ones((192, 3)), numpy.ones((192, 1)), batch_size=64, verbose=0, callbacks=[Marks()])
"""
    done = train([tensorflow, "-c", program], tmp_path / "marks")
    assert (done.code, done.steps(0), done.work("samples")) == (0, 3, 192), done.errors
