"""A backend without an engine: deterministic tokens at a settable rate, all arrivals, and faults on demand.

Loads and serves in the runner's own process with the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wattdock_runner.arguments import Argument
from wattdock_runner.backend import Backend
from wattdock_runner.clock import now_ns
from wattdock_runner.errors import OutOfMemory, RunnerFault
from wattdock_runner.recorder import Step
from wattdock_runner.serving import Engine
from wattdock_runner.stop_strings import StopStrings
from wattdock_runner.values import Arrival, LoadedModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.recorder import PassRecorder, RequestRecord
    from wattdock_runner.serving import Answer
    from wattdock_runner.values import LoadOrder, Report, Workload

VOCABULARY = 32_000
FAULTS = ("none", "die", "raise", "hang", "oom", "orphan", "refuse")
FAULT_PREFIX = "fault:"
ORPHAN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
DEFAULTS: dict[str, Any] = {
    "step_s": 0.001,
    "tokens_per_step": 1,
    "load_s": 0.0,
    "stops_after": None,
    "load_fault": "none",
    "pass_fault": "none",
    "used_gpus": None,
    "most_in_flight": 10_000,
}


class NoRoom(OutOfMemory):
    """An engine's own class of error, which only its own arguments can make."""

    def __init__(self, engine: str, wanted: str) -> None:
        super().__init__(f"the {engine} engine has no {wanted}")


def strike(fault: object) -> None:
    """Do what a fault's name says; "none" does nothing."""
    if fault == "die":
        os._exit(70)
    if fault == "raise":
        raise RuntimeError("the fake engine was told to fail")
    if fault == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
        # Another thread may be the first to stop.
        time.sleep(600)
    if fault == "oom":
        raise NoRoom("fake", "room")
    if fault == "refuse":
        raise RunnerFault("the fake engine refuses")
    if fault == "orphan":
        # Its own session and deaf to SIGTERM: what ends only the runner's process group leaves it behind.
        subprocess.Popen([sys.executable, "-c", ORPHAN], start_new_session=True)


@dataclass
class Encoded:
    """What a tokenizer returns."""

    input_ids: list[int]


class FakeTokenizer:
    """One id per word, by its letters; "fault:NAME" is an id of its own, behind the vocabulary."""

    chat_template = None
    bos_token_id = unk_token_id = None

    def __call__(self, text: str, *, add_special_tokens: bool) -> Encoded:
        """Encode a text."""
        if text.startswith(FAULT_PREFIX):
            return Encoded([VOCABULARY + FAULTS.index(text.removeprefix(FAULT_PREFIX))])
        return Encoded([zlib.crc32(word.encode()) % VOCABULARY for word in text.split()])

    def apply_chat_template(self, conversation: Any, *, add_generation_prompt: bool, tokenize: bool) -> str:
        """Never called: there is no template."""
        raise NotImplementedError

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return a word for each id."""
        return " ".join(f"t{token}" for token in token_ids)


class FakeEngine(Engine):
    """One step per beat of `step_s`; a step that a busy machine delays is made up for, so equal passes last equally."""

    tokenizer = FakeTokenizer()
    vocab_size = VOCABULARY + len(FAULTS)

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._args = args
        self._running: list[tuple[RequestRecord, list[int], str]] = []
        self._due_s = 0.0
        self._prompt_tokens = 0

    def prepare(self, workload: Workload, prompts: Sequence[EncodedPrompt], recorder: PassRecorder) -> None:
        """Forget the pass before, and strike."""
        if workload.in_flight > self._args["most_in_flight"]:
            raise OutOfMemory(f"{workload.in_flight} requests in flight need more blocks of KV cache than there are")
        self._stop = StopStrings(self.tokenizer, workload.stop)
        self._ignore_eos, self._is_open_loop = workload.ignore_eos, workload.arrival is Arrival.OPEN
        self._running, self._due_s, self._prompt_tokens = [], 0.0, 0
        strike(self._args["pass_fault"])

    def add(self, request: RequestRecord, prompt: EncodedPrompt) -> None:
        """Decide all tokens of a request; one whose prompt is a fault strikes."""
        if prompt.ids[0] >= VOCABULARY:
            strike(FAULTS[prompt.ids[0] - VOCABULARY])
        if not self._due_s or (self._is_open_loop and not self._running):
            self._due_s = max(self._due_s, time.monotonic())
        stop, wanted = self._args["stops_after"], prompt.max_output_tokens
        stops = stop is not None and not self._ignore_eos and stop <= wanted
        first = len(prompt.ids)
        ids = [(first + i) % VOCABULARY for i in range(stop if stops else wanted)]
        if self._stop.end(ids):
            ids, stops = next(ids[:at] for at in range(1, len(ids) + 1) if self._stop.end(ids[:at])), True
        request.cached_prompt_tokens = 0
        self._prompt_tokens += first
        self._running.append((request, ids, "stop" if stops else "length"))

    def step(self, until_ns: int | None) -> list[Answer]:
        """Give every request its next tokens on the beat."""
        start_ns = now_ns()
        self._due_s += self._args["step_s"]
        time.sleep(max(0.0, self._due_s - time.monotonic()))
        at_ns, count = now_ns(), self._args["tokens_per_step"]
        context_tokens = sum((request.prompt_tokens or 0) + len(request.output_ids) for request, _, _ in self._running)
        self.steps.append(Step(start_ns, at_ns, self._prompt_tokens, len(self._running), context_tokens))
        self._prompt_tokens = 0
        answers: list[Answer] = [
            (request, at_ns, ids[:count], None if len(ids) > count else reason)
            for request, ids, reason in self._running
        ]
        self._running = [(request, ids[count:], reason) for request, ids, reason in self._running if len(ids) > count]
        return answers


class FakeBackend(Backend):
    """Token ids depend on a prompt's length and their position only."""

    name = "fake"
    framework = "fake"
    framework_package = "grpcio"
    engine_arguments: Mapping[str, Argument] | None = {
        "step_s": Argument((float,)),
        "tokens_per_step": Argument((int,)),
        "load_s": Argument((float,)),
        "stops_after": Argument((int, type(None))),
        "load_fault": Argument((str,), FAULTS),
        "pass_fault": Argument((str,), FAULTS),
        "used_gpus": Argument((int, type(None))),
        "most_in_flight": Argument((int,)),
    }
    can_replicate = True
    spans_nodes = True

    def load(self, order: LoadOrder, report: Report) -> LoadedModel:
        """Pretend to load for `load_s` seconds, on exactly the GPUs asked for."""
        args = {**DEFAULTS, **order.engine_args}
        report("pretending to load")
        strike(args["load_fault"])
        time.sleep(args["load_s"])
        self.engine = FakeEngine(args)
        used = order.gpu_uuids[: args["used_gpus"]]
        report("loaded")
        return LoadedModel(
            visible_gpu_uuids=order.gpu_uuids,
            used_gpu_uuids=used,
            effective_engine_args={**args, "dtype": "float32" if order.dtype == "auto" else order.dtype},
            parallelism={"kind": "none" if len(used) < 2 else "fake", "devices": dict.fromkeys(used, 1)},
            parameter_count=1_000,
            weight_bytes=4_000,
        )
