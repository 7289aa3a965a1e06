"""The engine's thread takes one job at a time, and waits for one that is cancelled."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from wattdock_proto.v1 import runner_pb2 as pb
from wattdock_runner import servicer
from wattdock_runner.errors import WrongState
from wattdock_runner.servicer import EngineThread, RunnerServicer
from wattdock_runner.values import LoadOrder

if TYPE_CHECKING:
    from wattdock_runner.backend import Backend


def test_a_job_waits_for_one_whose_cancelling_is_heard_after_it() -> None:
    """The client cancelled first; gRPC told the runner second."""
    engine, cancelled = EngineThread(), threading.Event()
    engine.submit("Generate", lambda: cancelled.wait(60), cancelled)
    threading.Timer(0.3, cancelled.set).start()
    assert engine.submit("Unload", lambda: "freed", threading.Event()).result(timeout=60) == "freed"


@pytest.mark.parametrize(
    ("is_cancelled", "message"), [(False, "Generate is still running"), (True, "Generate is still being cancelled")]
)
def test_a_job_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch, message: str, *, is_cancelled: bool) -> None:
    """Another job is refused, also where a cancelled engine takes too long in the middle of a step."""
    monkeypatch.setattr(servicer, "CANCEL_ARRIVAL_S", 0.1)
    monkeypatch.setattr(servicer, "CANCELLED_JOB_GRACE_S", 0.1)
    engine, over, cancelled = EngineThread(), threading.Event(), threading.Event()
    engine.submit("Generate", lambda: over.wait(60), cancelled)
    if is_cancelled:
        cancelled.set()
    try:
        with pytest.raises(WrongState, match=message):
            engine.require_idle()
    finally:
        over.set()


def test_an_end_does_not_wait_for_a_job_that_waits_for_the_running_one() -> None:
    """Unload waits for a pass that the end cancels; it comes too late, and the end does the unloading."""
    engine, cancelled, done = EngineThread(), threading.Event(), list[str]()
    engine.submit("Generate", lambda: cancelled.wait(60), cancelled)
    refused = list[str]()

    def unload() -> None:
        try:
            engine.submit("Unload", lambda: done.append("unloaded"), threading.Event())
        except WrongState as error:
            refused.append(str(error))

    waiting = threading.Thread(target=unload)
    waiting.start()
    assert engine.end(lambda: done.append("ended"), 60)
    waiting.join(60)
    assert (done, refused) == (["ended"], ["this runner was asked to stop"])


def test_an_end_says_what_did_not_end() -> None:
    """Neither a job that hears nothing, nor what comes last."""
    engine, over = EngineThread(), threading.Event()
    engine.submit("Generate", lambda: over.wait(60), threading.Event())
    assert not engine.end(lambda: None, 0.1)
    over.set()
    assert not EngineThread().end(lambda: time.sleep(1), 0.1)


class FailsToUnloadOnce:
    """A backend whose first try to free its model fails."""

    unloads = 0

    def unload(self) -> None:
        self.unloads += 1
        if self.unloads == 1:
            raise RuntimeError("the device is busy")


def test_a_model_that_could_not_be_freed_is_freed_at_the_end() -> None:
    """What a failed Unload leaves behind is still loaded."""
    backend = FailsToUnloadOnce()
    runner = RunnerServicer(cast("Backend", backend))
    runner._is_loaded = True
    with pytest.raises(RuntimeError, match="busy"):
        runner.Unload(pb.UnloadRequest(), None)
    assert runner.shut_down(60)
    assert backend.unloads == 2


class MakesMuch:
    """A backend whose load leaves a hundred thousand objects behind."""

    can_replicate = False

    def ranks(self, order: object) -> int:
        return 1

    def load(self, order: object, report: object) -> SimpleNamespace:
        self.made = [[number] for number in range(100_000)]
        return SimpleNamespace()

    def unload(self) -> None:
        self.made = []


def test_what_a_load_made_is_left_out_of_searches_for_garbage() -> None:
    """A search through it takes tenths of a second, which may be within a pass."""
    runner, before = RunnerServicer(cast("Backend", MakesMuch())), gc.get_freeze_count()
    try:
        runner._load(LoadOrder(Path("model")), lambda stage: None, threading.Event())
        assert gc.get_freeze_count() > before + 100_000
    finally:
        gc.unfreeze()
