"""What is taken down of the batches that vLLM's scheduler plans; without vLLM."""

from __future__ import annotations

import importlib
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import VLLM_FOLDER

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module, which imports no vLLM."""
    monkeypatch.syspath_prepend(VLLM_FOLDER)
    return importlib.import_module("wattdock_vllm_steps")


def batch(
    cached: dict[str, tuple[int, int, int]], new: dict[str, tuple[int, int]], **drafts: list[int]
) -> SimpleNamespace:
    """Return a scheduler's plan.

    Args:
        cached: Tokens planned, tokens computed before, output tokens so far of each request that it planned before.
        new: Tokens planned and tokens in the prefix cache of each other request.
    """
    planned = {name: numbers[0] for name, numbers in (cached | new).items()}
    return SimpleNamespace(
        num_scheduled_tokens=planned,
        total_num_scheduled_tokens=sum(planned.values()),
        scheduled_cached_reqs=SimpleNamespace(
            num_computed_tokens=[computed for _, computed, _ in cached.values()],
            num_output_tokens=[tokens for _, _, tokens in cached.values()],
        ),
        scheduled_new_reqs=[SimpleNamespace(num_computed_tokens=computed) for _, computed in new.values()],
        scheduled_spec_decode_tokens=drafts,
    )


def core(*queue: Any) -> Any:
    """Return an engine core with these batches in its queue."""
    scheduler = SimpleNamespace(update_from_output=lambda *_: None, make_spec_decoding_stats=lambda _, **told: told)
    return SimpleNamespace(scheduler=scheduler, batch_queue=deque(("future", left, "future") for left in queue))


@pytest.mark.parametrize("knows_context", [True, False])
def test_prompts_are_what_is_neither_decoded_nor_drafted(module: Any, *, knows_context: bool) -> None:
    """A new prompt behind its cached part, a chunk in the middle of a prompt, a decoding sequence, one with drafts."""
    engine = core()
    watch = module.StepWatch(engine, knows_context=knows_context)
    plan = batch({"b": (64, 64, 0), "c": (1, 20, 4), "d": (3, 30, 2)}, {"a": (5, 3)}, d=[7, 7])
    engine.scheduler.update_from_output(plan, None)
    [step] = watch.after_step(1 << 62)
    assert (step.prompt_tokens, step.sequences) == (5 + 64, 4)
    assert step.context_tokens == (8 + 128 + 21 + 33 if knows_context else None)


def test_drafts_are_those_of_the_pass_as_vllm_counts_them(module: Any) -> None:
    """Whatever vLLM makes of its own statistics; a pass begins with none."""
    engine = core()
    watch = module.StepWatch(engine, knows_context=False)
    for number in (3, 2):
        told = {"num_draft_tokens": number, "num_accepted_tokens": 1, "request_id": "a"}
        assert engine.scheduler.make_spec_decoding_stats(None, **told) == told
    assert watch.drafts == (5, 2)
    watch.open()
    assert watch.drafts == (0, 0)


class ModelRunner:
    """A model runner of vLLM's whose model and sampler take so many nanoseconds of a clock of ours."""

    def __init__(self, clock: list[int], model_ns: int, sampling_ns: int) -> None:
        self.clock, self.model_ns, self.sampling_ns = clock, model_ns, sampling_ns

    def execute_model(self, tokens: int) -> None:
        """Prepare the input, and run the model unless the batch is empty."""
        self.clock[0] += 2
        if tokens:
            self._model_forward()

    def _model_forward(self) -> None:
        self.clock[0] += self.model_ns

    def sample_tokens(self) -> None:
        """Sample the tokens of the batch."""
        self.clock[0] += self.sampling_ns


# New requests of batches: one left over from an earlier pass, one of this pass, none, one that has ended meanwhile.
NEW = (("a", 1), ("b", 4), ("", 0), ("gone", 1))


def test_steps_are_dated_where_the_workers_computed_them(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty batches and those of an earlier pass are left out on both sides; what was computed in vain is a step."""
    now = [0]
    monkeypatch.setattr(importlib.import_module("wattdock_runner.device_clock"), "now_ns", lambda: now[0])
    runner = ModelRunner(now, 10, 3)
    clock = module.BatchClock(runner, SimpleNamespace(type="cpu"))
    left, *batches = (batch({}, {name: (tokens, 0)} if name else {}) for name, tokens in NEW)
    batches.append(batch({"b": (1, 4, 1)}, {}))
    engine = core(left)
    watch = module.StepWatch(engine, knows_context=True)
    watch.open()
    clock.open()
    for computed in batches:
        runner.execute_model(computed.total_num_scheduled_tokens)
        if computed.total_num_scheduled_tokens:
            runner.sample_tokens()
    steps = []
    for back in (left, *batches):
        engine.scheduler.update_from_output(back, None)
        steps.extend(watch.after_step(1 << 62))
    dated = watch.dated(steps, [clock.dates()])
    assert [(step.start_ns, step.end_ns, step.prompt_tokens) for step in dated] == [
        (2, 15, 4),
        (19, 32, 1),
        (34, 47, 0),
    ]
