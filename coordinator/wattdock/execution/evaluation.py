"""Ask a loaded model the questions of `quality:`, in passes that are metered like measured ones and kept apart.

What goes wrong here costs the questions' scores only. Must not know: what is asked, and what is right.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.errors import ConfigError, WattdockError
from wattdock.execution.loaded import SETTLE_S
from wattdock.execution.procedure import generate
from wattdock.inputs import PromptSet
from wattdock.quality import THOUGHTS_END, Answer, Likelihood, tasks_of, thought_tokens, with_marks
from wattdock.records import Evaluation, PassRecord, RequestRecord, passes
from wattdock.runner import PassRequest
from wattdock.values import known_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.execution.loaded import LoadedRunner
    from wattdock.execution.recording import Recording
    from wattdock.quality import Prompt, Score, Task

# Longest run of a program that the model wrote: right ones take milliseconds.
PROGRAM_S = 10.0
# Exit code of a program whose last line was reached: one that ends itself before its checks exits with 0, too.
ENDED = 113
# Pairs of texts whose likelihoods are asked for at once: a message holds 3 MB, and a question is seldom 20 kB.
PAIRS = 128


def evaluate(runner: LoadedRunner, recording: Recording) -> None:
    """Ask every task of an experiment, if it has any, and add what came of it to `recording`.

    An error ends a task, and the record says which; the passes measured before stay.

    Raises:
        KeyboardInterrupt: The run was interrupted.
    """
    try:
        tasks = tasks_of(recording.config)
    except ConfigError as error:
        recording.add(evaluations=Evaluation("", failure=str(error)))
        return
    for task in tasks:
        recording.stage = f"quality: {task.name}"
        try:
            found = _evaluation(runner, recording, task)
        except KeyboardInterrupt:
            recording.add(evaluations=Evaluation(task.name, failure="interrupted while it was asked"))
            raise
        recording.add(evaluations=found)


def _evaluation(runner: LoadedRunner, recording: Recording, task: Task) -> Evaluation:
    asked = len(recording.record.all_passes) - len(recording.record.passes)
    engine = _AskedEngine(runner, recording, first=asked)
    found = Evaluation(task.name, task.version, task.few_shot)
    try:
        scores = tuple(map(engine.with_thoughts, task.evaluate(engine)))
    except WattdockError as error:
        return dataclasses.replace(found, passes=tuple(engine.passes), failure=str(error))
    return dataclasses.replace(found, passes=tuple(engine.passes), scores=scores)


@dataclass
class _AskedEngine:
    """The loaded engine as a task sees it; `first` passes answered other tasks of this restart, `passes` this one."""

    runner: LoadedRunner
    recording: Recording
    first: int
    passes: list[PassRecord] = field(default_factory=list)

    def generate(self, prompts: Sequence[Prompt], stop: Sequence[str] = ()) -> list[Answer]:
        """Answer prompts in a pass of their own, each once and greedily."""
        config, runner = self.recording.config, self.runner
        assert config.quality
        work, spec, open_loop = config.workload, config.workload.prompts, config.workload.loop == "open"
        chat_kwargs = spec.chat_template_kwargs if config.quality.chat else {}
        changed: dict[str, Any] = {
            "prompts": spec.model_copy(update={"chat": config.quality.chat, "chat_template_kwargs": chat_kwargs}),
            "arrival": "closed" if open_loop else work.arrival,
            "max_output_tokens": max(prompt.max_output_tokens for prompt in prompts),
            "temperature": 0.0,
            "top_p": None,
            "top_k": None,
        }
        sent = PromptSet(
            items=tuple(prompt.content for prompt in prompts),
            max_output_tokens=tuple(prompt.max_output_tokens for prompt in prompts),
            sha256="",
            name=self.recording.stage,
            means=(None, float(changed["max_output_tokens"])),
        )
        present = spec.chat_time_utc or runner.context.folder.begun
        request = PassRequest(
            workload=work.model_copy(update=changed),
            prompts=sent,
            min_requests=len(prompts),
            template_time_s=int(present.timestamp()),
            settle_s=SETTLE_S if runner.gpu_uuids else 0.0,
            stop=tuple(stop),
        )
        number = self.first + len(self.passes)
        answered = generate(runner, self.recording, request)
        # A template that begins the thoughts leaves their mark in the prompt.
        ended = [each.finish_reason == "stop" for each in answered.requests]
        texts = with_marks([each.text for each in answered.requests], ended)
        marked = tuple(
            dataclasses.replace(each, text=text) for each, text in zip(answered.requests, texts, strict=True)
        )
        answered = dataclasses.replace(answered, index=-1 - number, requests=marked, lease_fault=runner.lease_fault())
        self.passes.append(answered)
        self.recording.note_rendered(sent, answered.rendered_sha256)
        if len(answered.requests) != len(prompts) or any(request.text is None for request in answered.requests):
            raise ConfigError(f"{config.backend} returns no texts of its answers", "leave quality out")
        return [Answer(request.text or "", (number, at)) for at, request in enumerate(answered.requests)]

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """Ask how likely texts are, in parts that a message has room for; each part is a pass of its own."""
        config, runner, found = self.recording.config, self.runner, list[Likelihood]()
        for begin in range(0, len(pairs), PAIRS):
            runner.context.interrupts.check()
            number = self.first + len(self.passes)
            with runner.meter.window(self.recording.stage):
                scores, span = runner.client.log_likelihoods(
                    pairs[begin : begin + PAIRS],
                    batch_size=config.workload.batch_size,
                    timeout_s=config.timeouts.stall_s,
                )
                if runner.gpu_uuids:
                    runner.context.machine.clock.sleep(SETTLE_S)
            if cut := sum(score.left_out > 0 for score in scores):
                what = f"{cut} of {len(scores)} texts have no room in the model's context, and would lose their begin"
                raise ConfigError(what, "lower quality.few_shot, or raise the engine's limit")
            asked = tuple(
                RequestRecord(at, span.start_ns, finished_ns=span.end_ns, output_tokens=score.tokens)
                for at, score in enumerate(scores)
            )
            tokens, nothing = sum(score.tokens for score in scores), np.zeros(0, dtype=np.int64)
            series = passes.TokenSeries(nothing, nothing)
            fault = runner.lease_fault()
            self.passes.append(
                PassRecord(span, asked, series, tokens, None, None, 0, index=-1 - number, lease_fault=fault)
            )
            found += [
                Likelihood(score.log_likelihood, score.is_greedy, (number, at)) for at, score in enumerate(scores)
            ]
        return found

    def with_thoughts(self, score: Score) -> Score:
        """Return a score with the tokens of thought of its answers."""
        answers = [self.passes[number - self.first].requests[at] for number, at in score.requests]
        each = (
            thought_tokens(answer.text or "", answer.output_ids or (), answer.output_tokens or 0, self._end_id)
            for answer in answers
        )
        return dataclasses.replace(score, thought_tokens=known_sum(each) if answers else 0)

    @cached_property
    def _end_id(self) -> int | None:
        return self.runner.model.token_id(THOUGHTS_END)

    def succeeds(self, program: str) -> bool:
        """Whether a program comes to its last line in the runner's sandbox."""
        return self.runner.client.run_program(f"{program}\nraise SystemExit({ENDED})\n", timeout_s=PROGRAM_S) == ENDED
