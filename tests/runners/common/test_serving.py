"""The loop that serves requests, with an engine that answers at once."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from wattdock_runner.clock import now_ns
from wattdock_runner.recorder import PassRecorder
from wattdock_runner.serving import Engine, serve
from wattdock_runner.values import Arrival, Prompt, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.recorder import RequestRecord
    from wattdock_runner.serving import Answer


class Answers(Engine):
    """Gives each request one token, and notes which prompts a search for garbage would go through."""

    def __init__(self) -> None:
        self.running: list[RequestRecord] = []
        self.searched: list[int] = []

    def add(self, request: RequestRecord, prompt: EncodedPrompt) -> None:
        self.running.append(request)
        if any(each is prompt.ids for each in gc.get_objects()):
            self.searched.append(prompt.position)

    def step(self, until_ns: int | None) -> Iterable[Answer]:
        done, self.running = self.running, []
        return [(request, now_ns(), [1], "length") for request in done]


def test_no_search_for_garbage_goes_through_a_passs_prompts() -> None:
    """One through thousands of lists of ids takes tenths of a second, again and again within a pass."""
    engine, recorder = Answers(), PassRecorder()
    prompts = [Prompt([number, 2, 3]) for number in range(6)]
    try:
        serve(engine, Workload(Arrival.CLOSED, 2, 1), prompts, recorder)
    finally:
        gc.unfreeze()
    assert len(recorder.requests) == 6
    assert engine.searched == []
