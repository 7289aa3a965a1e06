"""Counting and dating what `generate` returned, without torch."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import PYTORCH_FOLDER

from wattdock_runner.recorder import PassRecorder

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    """Return the module, which imports no torch by itself."""
    spec = importlib.util.spec_from_file_location(
        "wattdock_pytorch_steps", PYTORCH_FOLDER / "wattdock_pytorch_steps.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "torch" not in sys.modules
    return module


@pytest.mark.parametrize(
    ("ids", "limit", "length"),
    [
        ([5, 6, 7], 3, 3),
        ([5, 2, 0, 0], 4, 2),
        ([2, 0, 0], 3, 1),
        ([5, 9, 2, 9], 4, 2),
        ([5, 6, 7, 2], 2, 2),
        ([5, 0, 7, 0], 4, 4),
    ],
)
def test_the_end_of_sequence_counts_and_what_follows_does_not(
    steps: Any, ids: list[int], limit: int, length: int
) -> None:
    """Ids 2 and 9 end a sequence; 0 is padding only after them."""
    assert steps.output_length(ids, {2, 9}, limit) == length


@pytest.mark.parametrize(("width", "context_tokens"), [(7, (21, 24)), (None, (None, None))])
def test_a_batch_s_prefill_is_its_first_step(
    steps: Any, width: int | None, context_tokens: tuple[int | None, ...]
) -> None:
    """Each step begins where the one before ends; where layers read a part only, no figure is made up."""
    prefill, decode = steps.steps_of_batch(10, [20, 25], prompt_tokens=15, sequences=3, context_tokens=width)
    assert (prefill[:4], decode[:4]) == ((10, 20, 15, 3), (20, 25, 0, 3))
    assert (prefill.context_tokens, decode.context_tokens) == context_tokens


@pytest.mark.parametrize("is_spread", [False, True], ids=["plain", "accelerate's wrapper"])
def test_each_forward_pass_is_a_step_and_the_model_is_left_as_it_was(steps: Any, *, is_spread: bool) -> None:
    """Also where a pass fails; accelerate puts a `forward` of its own on a model that it spreads over devices."""

    class Model:
        def forward(self, ids: int, *, use_cache: bool) -> tuple[int, bool]:
            return ids, use_cache

    model = Model()
    if is_spread:
        model.forward = lambda ids, *, use_cache: (ids + 1, use_cache)  # type: ignore[method-assign]
    before = dict(vars(model))
    recorder = PassRecorder()
    clock = steps.StepClock(recorder, SimpleNamespace(type="cpu"))
    clock.step_tokens = iter((3, 2))
    with suppress(MemoryError), clock.watching(model):
        assert list(inspect.signature(model.forward).parameters) == ["ids", "use_cache"]
        assert model.forward(7, use_cache=True) == (8 if is_spread else 7, True)
        assert model.forward(7, use_cache=False) == (8 if is_spread else 7, False)
        raise MemoryError
    assert vars(model) == before
    assert model.forward(1, use_cache=True) == (2 if is_spread else 1, True)
    assert len(clock.instants()) == len(clock) == 2
    assert recorder.progress.output_tokens == 5
