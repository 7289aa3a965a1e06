"""Prompts of text through a study: the same rendering in all its restarts, told the same instant."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from make.machine import VirtualMachine, VirtualRunner, experiment, study
from make.outcomes import begins, known, send, statuses
from refused import raises
from seams.analysis import differing, everything
from seams.runner import generate_requests

from wattdock.errors import Cause, ExitCode, StoreError
from wattdock.study import StudyFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wattdock.config import Study
    from wattdock.records import PassRecord
    from wattdock.runner import PassRequest

    # What a runner renders a pass's texts to; takes the number of runners started so far.
    Rendering = Callable[[int, PassRequest], str | None]

OLD, OLD_S = "20010203T235959", 981_244_799


def by_texts(_: int, request: PassRequest) -> str:
    return f"of {' '.join(map(str, request.prompts.items))}"


def changing(launches: int, request: PassRequest) -> str:
    """Render anew from the second runner on."""
    return f"{min(launches, 2)}{by_texts(launches, request)}"


@dataclass
class ChatRunner(VirtualRunner):
    """Says what it rendered texts to."""

    render: Callable[[PassRequest], str | None] = lambda _: None
    asks_time: bool = False
    asked: list[PassRequest] = field(default_factory=list)

    def generate(self, request: PassRequest, **options: Any) -> PassRecord:
        self.asked.append(request)
        record = super().generate(request, **options)
        return replace(record, rendered_sha256=self.render(request), template_asked_time=self.asks_time)


@dataclass
class ChatMachine(VirtualMachine):
    """Its runners render texts.

    Attributes:
        asked: The passes that all its runners were asked for.
    """

    render: Rendering = by_texts
    asks_time: bool = False
    asked: list[PassRequest] = field(default_factory=list)

    def launch(self, spec: object) -> VirtualRunner:
        self.launches += 1
        launches, render = self.launches, self.render
        return ChatRunner(
            self.clock,
            render=lambda request: render(launches, request),
            asks_time=self.asks_time,
            asked=self.asked,
        )


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the machine's clock show another time than UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def machine(tmp_path: Path) -> ChatMachine:
    return ChatMachine(tmp_path / "machine")


@pytest.fixture
def chat(tmp_path: Path) -> Callable[..., Study]:
    """Return what makes a study of one experiment, two restarts of two passes, with prompts of text."""
    model, source = tmp_path / "model", tmp_path / "prompts.jsonl"
    model.mkdir()
    (model / "config.json").write_text('{"vocab_size": 100}')
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    source.write_text("".join(json.dumps({"prompt": f"question {number}"}) + "\n" for number in range(40)))

    def make(**settings: Any) -> Study:
        workload = {"prompts": {"source": str(source), **settings.pop("prompts", {})}}
        settings = {"repeats": {"restarts": 2}, **settings}
        return study(experiment("a", model=str(model), workload=workload, **settings))

    return make


@pytest.mark.parametrize(("warm_ups", "stage"), [(1, "warm-up 1/1"), (0, "pass 1/2")])
def test_restarts_whose_prompts_were_rendered_differently_are_not_pooled(
    machine: ChatMachine, chat: Callable[..., Study], warm_ups: int, stage: str
) -> None:
    """The second runner's first pass ends the experiment, and none of its passes is part of the result."""
    machine.render = changing
    [stored] = machine.run(chat(warmup={"passes": warm_ups})).results
    assert statuses([stored]) == [("a", "failed")]
    assert stored.result.error is not None
    assert (stored.result.error.exit_code, stored.result.error.stage) == (ExitCode.CONFIG, stage)
    assert stored.result.error.cause == Cause.PROMPTS_CHANGED
    assert [measured.restart for measured in known(stored.result.energy).passes] == [0, 0]


def test_a_resumed_restart_whose_prompts_are_rendered_differently_is_refused(
    machine: ChatMachine, chat: Callable[..., Study]
) -> None:
    """Its warm-up sends the texts that the interrupted run's warm-up sent."""
    machine.render = changing
    with pytest.raises(KeyboardInterrupt):
        machine.run(chat(), on=send(signal.SIGINT, begins("pass 1/2")))
    [stored] = machine.run(chat(), resume=True).results
    assert known(stored.result.error).cause == Cause.PROMPTS_CHANGED


def test_a_template_that_changes_within_a_restart_is_refused(machine: ChatMachine, chat: Callable[..., Study]) -> None:
    """Texts that are sent again must be rendered to what they were: a template can draw at random."""
    machine.render = lambda _, request: f"{len(machine.asked)}{by_texts(_, request)}"
    [stored] = machine.run(chat(prompts={"count": 40}, repeats={"restarts": 1})).results
    assert stored.result.error is not None
    assert stored.result.error.stage == "pass 1/2"
    assert stored.result.error.cause == Cause.PROMPTS_CHANGED


def test_the_rendering_stands_beside_the_model_and_is_a_condition_of_the_figure(
    machine: ChatMachine, chat: Callable[..., Study]
) -> None:
    """It is that of the first pass, whichever restart was resumed; other prompts of each pass are no change."""
    with pytest.raises(KeyboardInterrupt):
        machine.run(chat(), on=send(signal.SIGINT, begins("pass 1/2")))
    [stored] = machine.run(chat(), resume=True).results
    assert stored.result.status == "ok"
    assert stored.result.environment is not None
    assert stored.result.environment.model.rendered_sha256 == by_texts(0, machine.asked[1])
    assert stored.result.environment.changes == []
    machine.render = lambda launches, request: f"other {by_texts(launches, request)}"
    [other] = machine.run(chat()).results
    found = differing([everything(result.result.config, result.result.environment) for result in (stored, other)])
    assert [name for name in found if "render" in name or "time" in name] == ["prompts as rendered, SHA-256"]


def test_every_restart_and_resumed_run_is_told_when_the_study_began(
    machine: ChatMachine, chat: Callable[..., Study]
) -> None:
    """A study that was begun long ago goes on with that day, which the result names where the template asked for it."""
    machine.asks_time = True
    with pytest.raises(KeyboardInterrupt):
        machine.run(chat(), on=send(signal.SIGINT, begins("pass 1/2")))
    [folder] = (machine.results / "studies").iterdir()
    old = folder.rename(folder.with_name(f"{OLD}-s-1"))
    journal = old / "journal.jsonl"
    journal.write_text(journal.read_text().replace(folder.name, old.name))
    machine.asked.clear()
    [stored] = machine.run(chat(), resume=True).results
    assert [request.template_time_s for request in machine.asked] == [OLD_S] * len(machine.asked)
    assert len(machine.asked) > 3
    assert known(stored.result.environment).model.template_time_utc == "2001-02-03T23:59:59+00:00"
    machine.asked.clear()
    [said] = machine.run(chat(prompts={"chat_time_utc": "1999-12-31T23:59:59"})).results
    assert {request.template_time_s for request in machine.asked} == {946_684_799}
    assert known(said.result.environment).model.template_time_utc == "1999-12-31T23:59:59+00:00"
    machine.asks_time = False
    [other] = machine.run(chat()).results
    assert known(other.result.environment).model.template_time_utc is None


def test_tasks_of_a_study_are_told_when_the_study_began(machine: ChatMachine, chat: Callable[..., Study]) -> None:
    """Not when the task did, whose folder is a number."""
    task = machine.results / "studies" / f"{OLD}-s-1" / "tasks" / "0"
    machine.run(chat(), task=task)
    assert {request.template_time_s for request in machine.asked} == {OLD_S}


def test_a_study_s_begin_is_its_name_s_and_a_name_without_one_is_refused(
    tmp_path: Path, chat: Callable[..., Study]
) -> None:
    """A study that begins now says now."""
    with StudyFolder.create(chat(), tmp_path, machine={}) as folder:
        assert abs((datetime.now(UTC) - folder.begun).total_seconds()) < 60
        folder.lines[0]["study_id"] = "mine"
        with raises(StoreError, cause=Cause.MALFORMED):
            _ = folder.begun


def test_variables_and_the_instant_are_on_the_wire(machine: ChatMachine, chat: Callable[..., Study]) -> None:
    """What was set reaches the runner as it was set."""
    kwargs = {"enable_thinking": False, "effort": {"level": [1, "high", None]}}
    machine.run(chat(prompts={"chat_template_kwargs": kwargs}))
    workload = next(iter(generate_requests(machine.asked[0]))).workload
    assert json.loads(workload.chat_template_kwargs_json) == kwargs
    assert workload.template_time_s == machine.asked[0].template_time_s
    [line] = {stored.result.config.workload.prompts.model_dump_json() for stored in machine.last.results}
    assert json.loads(line)["chat_template_kwargs"] == kwargs
