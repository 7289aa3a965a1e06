"""What engines receive is what was declared: generated workloads, from settings through the wire to the engine.

What must arrive is worked out here from the settings alone, not by the code that sends it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.runner_process import ids_prompt, workload
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seams.records import DeclaredWork
from seams.runner import wire

from wattdock.config import ExperimentConfig
from wattdock.inputs import PromptSet, load_prompts
from wattdock.records import RequestRecord as StoredRequest
from wattdock.runner import PassRequest
from wattdock_proto.prompt_hash import hash_of
from wattdock_proto.v1 import runner_pb2 as pb
from wattdock_runner.clock import now_ns
from wattdock_runner.messages import pass_events, pass_from
from wattdock_runner.recorder import PassRecorder
from wattdock_runner.serving import Engine, serve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from contract.runner_process import Runner

    from wattdock.records import PassRecord
    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.recorder import RequestRecord
    from wattdock_runner.serving import Answer

VOCAB = 500
# Workloads that each engine is asked for; a first look took 100 of each, which costs vLLM's server a minute.
ENGINE_EXAMPLES = int(os.environ.get("WATTDOCK_EXAMPLES", "25"))
ARRIVALS = {"batch": pb.ARRIVAL_BATCH, "closed": pb.ARRIVAL_CLOSED, "single": pb.ARRIVAL_SINGLE}


class Watched(Engine):
    """An engine that gives every request a token per step, and remembers what it was given.

    Attributes:
        received: Index, ids, limit and instant of submission of each request, in order.
    """

    vocab_size = VOCAB

    def __init__(self) -> None:
        self.received: list[tuple[int, tuple[int, ...], int, int]] = []
        self._running: dict[int, tuple[RequestRecord, int]] = {}

    def add(self, request: RequestRecord, prompt: EncodedPrompt) -> None:
        self.received.append((request.index, tuple(prompt.ids), prompt.max_output_tokens, request.submitted_ns))
        self._running[request.index] = (request, prompt.max_output_tokens)

    def step(self, until_ns: int | None) -> Iterable[Answer]:
        for index, (request, limit) in list(self._running.items()):
            is_last = request.output_tokens + 1 == limit
            if is_last:
                del self._running[index]
            yield request, now_ns(), [1], "length" if is_last else None


lengths = st.one_of(
    st.integers(1, 20),
    st.builds(
        lambda low, more: {"distribution": "uniform", "min": low, "max": low + more},
        st.integers(1, 9),
        st.integers(0, 9),
    ),
)


@st.composite
def declared(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of a workload, as a person writes them; `prompts.source` may be the lines of a file."""
    source: Any = draw(
        st.one_of(
            st.just("synthetic"),
            st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9), min_size=1, max_size=9),
            st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=9),
        )
    )
    work: dict[str, Any] = {
        "prompts": {"source": source, "input_tokens": draw(lengths)},
        "arrival": draw(st.sampled_from(["batch", "closed", "single", "poisson", "gamma"])),
        "batch_size": draw(st.integers(1, 7)),
        "max_output_tokens": draw(lengths),
        "min_requests": draw(st.integers(1, 40)),
        "seed": draw(st.integers(0, 2**63 - 1)),
        "ignore_eos": True,
    }
    work["staggered_start"] = work["arrival"] == "closed" and draw(st.booleans())
    if count := draw(st.one_of(st.none(), st.integers(1, 12))):
        work["prompts"]["count"] = count
    if work["arrival"] == "single":
        work["batch_size"] = 1
    if work["arrival"] in ("poisson", "gamma"):
        work["rate_per_s"] = draw(st.sampled_from([3e3, 1e5]))
    if work["arrival"] == "gamma":
        work["burstiness"] = draw(st.sampled_from([0.5, 4.0]))
    return work


def run(work: dict[str, Any], folder: Path, *, restart: int, index: int) -> tuple[Watched, PassRecord, Any]:
    """Send a pass of these settings over the wire's messages to a watched engine; return engine, record and prompts."""
    source = work["prompts"]["source"]
    if source != "synthetic":
        keys = ("token_ids",) if isinstance(source[0], list) else ("input_tokens", "output_tokens")
        rows = [dict(zip(keys, (row,) if len(keys) == 1 else row, strict=True)) for row in source]
        path = folder / "prompts.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        work = {**work, "prompts": {**work["prompts"], "source": str(path)}}
    config = ExperimentConfig.model_validate({"backend": "fake", "workload": work, "repeats": {"passes": 3}})
    spec = config.workload
    prompts = load_prompts(
        config, pass_index=index, restart=restart, vocab_size=VOCAB, min_requests=spec.requests_per_pass
    )
    request = PassRequest(spec, prompts, min_requests=spec.requests_per_pass, ignore_eos=True)
    # As bytes, for what does not fit a field to show.
    sent = [pb.GenerateRequest.FromString(part.SerializeToString()) for part in wire.generate_requests(request)]
    engine, recorder = Watched(), PassRecorder()
    asked, sent_prompts = pass_from(sent)
    serve(engine, asked, sent_prompts, recorder)
    parts = wire.PassParts()
    for event in pass_events(recorder, len(sent_prompts)):
        parts.add(event)
    return engine, parts.record().of_prompts(prompts, config, ignore_eos=True), prompts


def share_of(limit: int, order: int, batch: int) -> int:
    """Return an even share of a limit, 1 at least."""
    return max(1, round(limit * order / batch))


def require_as_declared(work: dict[str, Any], received: Sequence[tuple[int, tuple[int, ...], int, int]]) -> None:
    """Check what an engine received against the settings."""
    source, batch = work["prompts"]["source"], work["batch_size"]
    assert [index for index, *_ in received] == list(range(max(work["min_requests"], 1)))
    first = batch if work["staggered_start"] else 0
    for index, ids, limit, _ in received:
        answers = work["max_output_tokens"]
        low, high = (answers, answers) if isinstance(answers, int) else (answers["min"], answers["max"])
        if source == "synthetic":
            tokens = work["prompts"]["input_tokens"]
            shortest, longest = (tokens, tokens) if isinstance(tokens, int) else (tokens["min"], tokens["max"])
            assert shortest <= len(ids) <= longest
            assert all(token < VOCAB for token in ids)
        elif isinstance(source[0], list):
            assert list(ids) in source
        else:
            allowed = {answer for prompt, answer in source if prompt == len(ids)}
            assert allowed
            low, high = min(allowed), max(allowed)
        assert limit <= high
        if index >= first:
            assert low <= limit, f"request {index} is shortened"
    if first and len(received) >= first and isinstance(work["max_output_tokens"], int) and source == "synthetic":
        limits = sorted(limit for _, _, limit, _ in received[:first])
        assert limits == sorted(share_of(work["max_output_tokens"], order + 1, first) for order in range(first))


def require_in_turn(work: dict[str, Any], received: Sequence[tuple[int, tuple[int, ...], int, int]]) -> None:
    """Check that a file's lines come in turn, each as often as any other, and that a list comes again as it was."""
    source, listed = work["prompts"]["source"], work["prompts"].get("count") or len(received)
    if source == "synthetic" or not isinstance(source[0], list):
        return
    once = Counter(ids for _, ids, *_ in received[:listed])
    rounds = min(listed, len(received)) / len(source)
    for ids, lines in Counter(map(tuple, source)).items():
        assert lines * math.floor(rounds) <= once[ids] <= lines * math.ceil(rounds)
    for index, ids, *_ in received[listed:]:
        assert ids == received[index % listed][1]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(work=declared(), restart=st.integers(0, 3), index=st.integers(0, 4))
def test_an_engine_receives_what_was_declared(work: dict[str, Any], restart: int, index: int) -> None:
    """Ids, order, limits and instants, however often the list goes round, in every restart and pass."""
    with tempfile.TemporaryDirectory() as folder:
        engine, record, prompts = run(work, Path(folder), restart=restart, index=index)
        again, _, _ = run(work, Path(folder), restart=restart, index=index)
    require_as_declared(work, engine.received)
    require_in_turn(work, engine.received)
    assert [row[:3] for row in engine.received] == [row[:3] for row in again.received]
    for request, (_, ids, limit, submitted_ns) in zip(record.requests, engine.received, strict=True):
        assert (request.prompt_tokens, request.max_output_tokens) == (len(ids), limit)
        assert request.output_tokens == limit
        if prompts.arrivals_ns:
            assert request.intended_ns == record.span.start_ns + prompts.arrivals_ns[request.index]
            assert submitted_ns >= (request.intended_ns or 0)
    assert record.declared is not None
    assert record.declared.mismatches == {}
    assert record.repeated_prompts == len(engine.received) - len({ids for _, ids, *_ in engine.received})


@settings(max_examples=60, deadline=None)
@given(work=declared(), index=st.integers(0, 3))
def test_restarts_draw_their_own_and_files_stay(work: dict[str, Any], index: int) -> None:
    """What a file holds is the same in each restart; ids that are drawn are not."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = (
            [ids for _, ids, *_ in run(work, Path(folder), restart=restart, index=index)[0].received]
            for restart in (0, 1)
        )
    source = work["prompts"]["source"]
    if source != "synthetic" and isinstance(source[0], list):
        if work["arrival"] not in ("poisson", "gamma"):
            assert first == second
    elif sum(map(len, first)) > 20:
        assert first != second


def test_what_is_not_as_declared_is_counted_by_what_differs() -> None:
    """A record whose engine was given something else; each kind by itself."""
    work: dict[str, Any] = {
        "prompts": {"source": "synthetic", "input_tokens": 8, "count": 5},
        "arrival": "closed",
        "batch_size": 2,
        "max_output_tokens": 6,
        "min_requests": 12,
        "seed": 1,
        "staggered_start": True,
        "ignore_eos": True,
    }
    config = ExperimentConfig.model_validate({"backend": "fake", "workload": work})
    _, record, prompts = run(work, Path(), restart=0, index=0)

    def mismatches(position: int, **changes: Any) -> dict[str, int]:
        requests = list(record.requests)
        requests[position] = replace(requests[position], **changes)
        changed = replace(record, requests=tuple(requests))
        found = changed.of_prompts(prompts, config, ignore_eos=True).declared
        assert found is not None
        return found.mismatches

    assert mismatches(3) == {}
    assert mismatches(3, prompt_hash=7) == {"prompt": 1}
    assert mismatches(3, prompt_hash=None) == {"prompt": 1}
    assert mismatches(7, max_output_tokens=3, output_tokens=3) == {"output limit": 1, "answer length": 1}
    assert mismatches(7, output_tokens=5) == {"answer length": 1}
    assert mismatches(7, index=8)["order"] == 1


def test_texts_that_a_chat_template_makes_one_are_not_called_another_prompt() -> None:
    """A template may trim a message; a runner that sends another text in its place is still found."""
    pair = (("system", "Hello"), ("user", " Why? "))
    sent: tuple[Any, ...] = ("Hello", "Hello ", (("user", "\nHello"),), pair, "Why?")
    prompts = PromptSet(sent, (None,) * 5, sha256="", name="x", means=(None, 64.0))
    config = ExperimentConfig.model_validate({"backend": "fake"})

    def mismatches(hashes: str) -> dict[str, int]:
        requests = [
            StoredRequest(index=i, submitted_ns=i, max_output_tokens=64, output_tokens=3, prompt_hash=ord(each))
            for i, each in enumerate(hashes)
        ]
        return DeclaredWork.of(prompts, config, requests, start_ns=0, ignore_eos=False).mismatches

    assert mismatches("hhhde" * 2) == {}
    assert mismatches("hhhdd" * 2) == {"prompt": 2}
    assert mismatches("hhhdehhxde") == {"prompt": 1}


prompt_lengths = st.lists(st.integers(1, 12), min_size=1, max_size=5)


def test_every_engine_generates_from_the_prompts_and_limits_it_was_sent(runner: Runner) -> None:
    """By what it answers: each prompt's greedy ids, up to the request's own limit, whoever else is in the batch."""
    offered = runner.stub.Describe(pb.DescribeRequest()).arrivals
    arrivals = sorted(name for name, number in ARRIVALS.items() if number in offered)
    most = 6
    alone = workload(arrival=pb.ARRIVAL_SINGLE, in_flight=1, max_output_tokens=most, return_token_ids=True)
    answers = runner.generate(alone, [ids_prompt(length) for length in range(1, 13)])
    expected = {length: list(record.output_ids.ids) for length, record in enumerate(answers.requests, start=1)}

    @settings(max_examples=ENGINE_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(
        sizes=prompt_lengths,
        limits=st.lists(st.integers(1, most), min_size=1, max_size=5),
        first=st.lists(st.integers(1, most), max_size=4),
        arrival=st.sampled_from(arrivals),
        in_flight=st.integers(1, 4),
        requests=st.integers(1, 12),
    )
    def answered(
        sizes: list[int], limits: list[int], first: list[int], arrival: str, in_flight: int, requests: int
    ) -> None:
        own = [limits[place % len(limits)] for place in range(len(sizes))]
        prompts = [ids_prompt(size, max_output_tokens=limit) for size, limit in zip(sizes, own, strict=True)]
        asked = workload(
            arrival=ARRIVALS[arrival],
            in_flight=1 if arrival == "single" else in_flight,
            min_requests=requests,
            return_token_ids=True,
            first_output_tokens=first,
        )
        result = runner.generate(asked, prompts)
        assert [record.index for record in result.requests] == list(range(requests))
        for record in result.requests:
            place = record.index % len(sizes)
            limit = first[record.index] if record.index < len(first) else own[place]
            assert (record.prompt_tokens, record.max_output_tokens) == (sizes[place], limit)
            assert list(record.output_ids.ids) == expected[sizes[place]][:limit]

    answered()


def test_a_hash_is_of_the_ids_and_their_order() -> None:
    """Each is a little-endian uint32, as runner.proto says."""
    ids = [1, 2, 70_000]
    packed = bytes.fromhex("01000000 02000000 70110100")
    assert hash_of(ids) == hash_of(array("I", ids)) == int.from_bytes(hashlib.sha256(packed).digest()[:8], "big")
    assert hash_of(ids) != hash_of(ids[::-1])
