"""`examples/train/ddp.py` on the CPU: however many ranks share a step, it learns the same, and its marks add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from contract.runner_process import PYTORCH_PYTHON
from spans.training import TRAIN, Training, lie_within, marks_on_the_page, train

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not PYTORCH_PYTHON.exists(), reason=f"no PyTorch environment at {PYTORCH_PYTHON}")

SAMPLES, LENGTH, EPOCHS, STEPS = 8, 64, 2, 2
SETTINGS = ("--global-batch", SAMPLES, "--length", LENGTH, "--steps", STEPS)
# Single precision sums in another order.
ROUNDING = 1e-5


def run(marks: Path, *options: object, ranks: int = 1) -> Training:
    """Train in one process, or in several over gloo."""
    many = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks) if ranks > 1 else ()
    return train([PYTORCH_PYTHON, *map(str, (*many, TRAIN / "ddp.py", *SETTINGS, *options))], marks)


def test_ranks_learn_what_one_process_learns_and_marks_add_up(tmp_path: Path) -> None:
    """Two ranks with DDP, and two with FSDP2 that go on from their checkpoint, each with half of a step's samples."""
    one = run(tmp_path / "one", "--epochs", EPOCHS, "--batch-size", 4, "--check-loss", 0.95)
    assert (one.code, len(one.losses)) == (0, EPOCHS * STEPS), one.errors
    assert one.losses[-1] < 0.95 * one.losses[0]
    kept = ("--checkpoint-to", tmp_path / "kept", "--batch-size", 2)
    ddp = run(tmp_path / "ddp", "--epochs", 1, *kept, ranks=2)
    assert ddp.losses == pytest.approx(one.losses[:STEPS], rel=ROUNDING), ddp.errors
    fsdp = run(tmp_path / "fsdp", "--epochs", EPOCHS, "--fsdp", *kept, ranks=2)
    assert fsdp.losses == pytest.approx(one.losses[STEPS:], rel=ROUNDING), fsdp.errors
    # One process has nobody to talk to, and FSDP2 talks while it computes.
    for training, ranks, epochs, talks in ((one, 1, 2, [0]), (ddp, 2, 1, range(2 * STEPS, 100)), (fsdp, 2, 1, [0])):
        assert len(training.ranks) == ranks
        assert training.work("samples") == epochs * STEPS * SAMPLES
        assert training.work("tokens") == epochs * STEPS * SAMPLES * LENGTH
        for rank in range(ranks):
            load, epoch, step = (training.spans(rank, name) for name in ("load", "epoch", "step"))
            assert (len(load), len(epoch), len(step), training.steps(rank)) == (1, epochs, *[epochs * STEPS] * 2)
            assert lie_within([*load, *epoch], [(load[0][0], epoch[-1][1])])
            assert lie_within(step, epoch)
            assert len(training.spans(rank, "checkpoint")) == (epochs if ranks > 1 else 0)
            communication = training.spans(rank, "communication")
            assert lie_within(communication, step)
            assert len(communication) in talks


def test_training_that_fails_says_so_in_one_line(tmp_path: Path) -> None:
    """A loss that is no number, and steps that cannot be shared."""
    lost = run(tmp_path / "lost", "--batch-size", 2, "--learning-rate", 1e30, ranks=2)
    assert lost.code == 1
    assert [line for line in lost.errors if line.startswith("the loss is nan in step ")] == [
        line for line in lost.errors if "the loss" in line
    ]
    odd = run(tmp_path / "odd", "--batch-size", 3)
    assert (odd.code, odd.errors[-1]) == (1, "--global-batch 8 is no multiple of 3, which all ranks pass at once")


def test_the_hooks_on_the_page_count_what_is_trained(tmp_path: Path) -> None:
    """An evaluation is no training."""
    program = f"""
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters())
{marks_on_the_page("optimizer.register")}
for _ in range(2):
    model(torch.ones(5, 3)).sum().backward()
    optimizer.step()
model.eval()(torch.ones(7, 3))
"""
    done = train([PYTORCH_PYTHON, "-c", program], tmp_path / "marks")
    assert (done.code, done.steps(0), done.work("samples")) == (0, 2, 10), done.errors
