"""The record of a pass adds up."""

from __future__ import annotations

import pytest
from seams.runner import wire

from wattdock_proto.v1 import runner_pb2 as pb
from wattdock_runner.errors import PassCancelled
from wattdock_runner.messages import CHUNK_BYTES, chunked, pass_events
from wattdock_runner.recorder import PassRecorder, RequestRecord, Step, merged


def two_requests() -> PassRecorder:
    """Return a pass of two requests that shared the step at 30."""
    recorder = PassRecorder()
    recorder.open()
    first = RequestRecord(0, 10, 4, cached_prompt_tokens=1, steps=[(20, 1), (30, 1)], finish_reason="stop")
    recorder.requests = [first, RequestRecord(1, 11, 5, steps=[(30, 2)], finish_reason="length", text="x")]
    recorder.close()
    return recorder


def test_first_and_last_token_and_counts_come_from_the_steps() -> None:
    """A request that got no token has neither."""
    first, second = two_requests().requests
    assert (first.index, first.first_token_ns, first.finished_ns, first.output_tokens) == (0, 20, 30, 2)
    assert (second.index, second.first_token_ns, second.finished_ns, second.output_tokens) == (1, 30, 30, 2)
    assert RequestRecord(2, 12).finished_ns is None


def test_series_merges_equal_instants_and_ends_at_the_total() -> None:
    """Two requests served by one step make one point."""
    assert two_requests().token_series() == ([20, 30], [1, 4])


def test_a_step_decoded_what_came_at_its_end_but_for_first_tokens() -> None:
    """The second request's first token came with another one, as with drafted tokens."""
    recorder = two_requests()
    recorder.take_steps([Step(10, 20, 4, 1, 4), Step(20, 25, 3, 1, 3), Step(25, 30, 2, 2, 10)])
    assert [step.decoded_tokens for step in recorder.steps] == [0, 0, 2]


def test_drafts_of_replicas_add_up_and_gaps_between_tokens_travel_with_them() -> None:
    """A step of speculative decoding gives any number of tokens, so that its instants tell no gaps."""
    parts = [two_requests(), two_requests()]
    for part in parts:
        part.take_steps([Step(10, 20, 4, 1, None), Step(20, 30, 5, 2, None)])
        part.drafted_tokens, part.accepted_tokens = 4, 1
    recorder = PassRecorder()
    recorder.adopt(merged(parts))
    received = wire.PassParts()
    for event in pass_events(recorder, prompts=2):
        received.add(event)
    record = received.record()
    assert (record.drafted_tokens, record.accepted_tokens) == (8, 2)
    assert {request.token_gaps_ns for request in record.requests} == {(10,), (0,)}
    parts[0].drafted_tokens = None
    assert merged(parts).drafted_tokens is None


def test_a_hundred_thousand_steps_travel_in_chunks_and_an_unknown_figure_stays_unknown() -> None:
    """No message comes near gRPC's 4 MB; the coordinator has the same figures, and no zeros for what is not known."""
    recorder = two_requests()
    first_ns = 1 << 60
    recorder.steps = [Step(first_ns + n, first_ns + n + 1, n, 1 << 30, None, 1 << 30) for n in range(100_000)]
    events = list(pass_events(recorder, prompts=2))
    assert max(event.ByteSize() for event in events) <= CHUNK_BYTES
    parts = wire.PassParts()
    for event in events:
        parts.add(event)
    steps = parts.record().steps
    assert steps.start_ns.tolist() == [step.start_ns for step in recorder.steps]
    assert steps.prompt_tokens.tolist() == list(range(100_000))
    assert (len(steps.end_ns), len(steps.decoded_tokens), len(steps.sequences)) == (100_000,) * 3
    assert len(steps.context_tokens) == 0


def test_summary_leaves_a_sum_unknown_when_a_part_is() -> None:
    """One request that does not know its cached tokens makes the sum unknown, not small."""
    summary = list(pass_events(two_requests(), prompts=2))[-1].summary
    assert summary.prompt_tokens == 9
    assert not summary.HasField("cached_prompt_tokens")
    assert summary.output_tokens == 4
    assert summary.prompt_repeats == 0


def test_cancellation_is_seen_by_the_engine() -> None:
    """The servicer sets, the engine's loop raises."""
    recorder = PassRecorder()
    recorder.check_cancelled()
    recorder.cancelled.set()
    with pytest.raises(PassCancelled):
        recorder.check_cancelled()


def test_chunks_keep_order_and_limit_and_an_oversized_message_travels_alone() -> None:
    """Nothing is lost, whatever the sizes."""
    sizes = [10, 400, 990, 5000, 1, 1]
    prompts = [pb.Prompt(text="a" * size) for size in sizes]
    chunks = list(chunked(prompts, limit_bytes=1000))
    assert [prompt for chunk in chunks for prompt in chunk] == prompts
    assert [[len(prompt.text) for prompt in chunk] for chunk in chunks] == [[10, 400], [990], [5000], [1, 1]]
    encoded = [pb.PromptChunk(prompts=chunk).ByteSize() for chunk in chunks]
    assert all(size <= 1000 for size in encoded if size < 5000)
