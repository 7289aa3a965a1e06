"""Prompt files as their writers make them: which format a file is of, and what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make.prompt_files import (
    LENGTHS,
    MESSAGES,
    SHAREGPT,
    SHAREGPT_ROLES,
    VLLM,
    Records,
    experiment,
    jsonl,
    read,
)
from refused import raises
from seams.inputs import FORMATS, read_source
from seams.runner import wire

from wattdock.config import ExperimentConfig
from wattdock.errors import Cause, ConfigError
from wattdock.inputs import PromptSet, check_prompts, load_prompts
from wattdock.runner import PassRequest
from wattdock_runner.messages import pass_from
from wattdock_runner.values import Chat

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "text", "form", "items", "limits", "ignored"),
    [
        (
            *("sharegpt.json", json.dumps(SHAREGPT, indent=2), "ShareGPT", ("Why?", "Why?"), (None, None)),
            {"id", "all turns but the first", "2 conversations without a user's turn first"},
        ),
        ("p.jsonl", jsonl(SHAREGPT_ROLES), "ShareGPT", ("Why?",), (None,), {"all turns but the first"}),
        ("l.jsonl", jsonl(LENGTHS), "wattdock's lengths", (655, 672, 520), (52, 26, 52), {"arrival_s"}),
        ("m.jsonl", jsonl(MESSAGES), "OpenAI messages", ("Hi", "Hello"), (7, None), {"model"}),
        ("v.jsonl", jsonl(VLLM), "vLLM's custom data set", (VLLM[0]["prompt"], "And?"), (10, 152), set()),
    ],
)
def test_each_format_is_told_by_its_keys_and_says_what_is_not_used(
    tmp_path: Path, name: str, text: str, form: str, items: Any, limits: Any, ignored: set[str]
) -> None:
    """Lengths, texts, ids and limits as its writer meant them; a JSON array of the same records says the same."""
    source = read(tmp_path, text, name)
    assert (source.format, source.items, source.max_output_tokens) == (form, items, limits)
    assert set(source.ignored) == ignored
    if name.endswith("l"):
        records = [json.loads(line) for line in text.splitlines()]
        again = read(tmp_path, json.dumps(records, indent=1), "p.json")
        assert (again.items, again.max_output_tokens, again.ignored) == (items, limits, source.ignored)


CHAT = (("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!"), ("user", "Why?"))


def test_several_messages_are_a_chat_that_is_sent_as_it_is(tmp_path: Path) -> None:
    """Roles and texts in order, through the wire to the runner; a chat counts as text wherever text counts."""
    chat: Records = [{"role": role, "content": content} for role, content in CHAT]
    records: Records = [{"messages": chat}, {"messages": chat[1:2]}, {"messages": chat}]
    config = experiment(tmp_path, jsonl(records), prompts={"count": 3})
    source, sent = read_source(config, 1000), load_prompts(config, pass_index=0)
    assert source
    assert source.items == (CHAT, "Hi", CHAT)
    with raises(ConfigError, "p.jsonl"):
        check_prompts(config, has_tokenizer=False)
    reordered = replace(sent, items=tuple(item[::-1] for item in sent.items))
    assert reordered.texts_sha256 != sent.texts_sha256
    _, received = pass_from(wire.generate_requests(PassRequest(config.workload, sent, min_requests=3)))
    assert [prompt.content for prompt in received] == [item if item == "Hi" else Chat(CHAT) for item in sent.items]


def test_a_conversation_that_a_system_s_turn_begins_is_left_out_and_counted(tmp_path: Path) -> None:
    """As one that begins in the middle; where all of them do, there is nothing to send."""
    spoken = [{"from": "system", "value": "s"}, {"from": "human", "value": "u"}]
    left_out: Records = [{"conversations": spoken[:count]} for count in (0, 1, 2)]
    source = read(tmp_path, jsonl([*left_out, {"conversations": spoken[1:]}]))
    assert (source.items, source.ignored[-1]) == (("u",), "3 conversations without a user's turn first")
    with raises(ConfigError, "p.jsonl", cause=Cause.EMPTY):
        read(tmp_path, jsonl(left_out))


def test_messages_need_the_chat_template_and_a_conversation_s_first_turn_does_not(tmp_path: Path) -> None:
    """With `chat: false` text is sent as it is, and a message is more than its text."""
    with raises(ConfigError, "prompts.chat"):
        read(tmp_path, jsonl(MESSAGES), prompts={"chat": False})
    assert read(tmp_path, jsonl(SHAREGPT), prompts={"chat": False}).items == ("Why?", "Why?")


KINDS: tuple[Records, ...] = (LENGTHS, SHAREGPT, MESSAGES[:1], VLLM)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
def test_the_order_of_keys_says_nothing_and_each_name_of_a_key_something(tmp_path: Path, data: st.DataObject) -> None:
    """Records with their keys in any order are the same source; with a key renamed or twice, they are refused."""
    records = data.draw(st.sampled_from(KINDS))
    shuffled = [dict(data.draw(st.permutations(list(record.items())))) for record in records]
    assert read(tmp_path, jsonl(shuffled)).items == read(tmp_path, jsonl(records)).items
    position = data.draw(st.integers(0, len(records) - 1))
    key = data.draw(st.sampled_from(sorted(shuffled[position])))
    renamed = [dict(record) for record in shuffled]
    renamed[position][data.draw(st.sampled_from((key.swapcase(), f"{key}s", f" {key}", "extra")))] = renamed[
        position
    ].pop(key)
    twice = [json.dumps(record) for record in shuffled]
    twice[position] = f'{twice[position][:-1]}, "{key}": {json.dumps(shuffled[position][key])}}}'
    for text in (jsonl(renamed), "\n".join(twice), f"[{','.join(twice)}]"):
        with pytest.raises(ConfigError, match=f"p.jsonl:{position + 1 if text[0] != '[' else 1}: "):
            read(tmp_path, text)


def test_a_plan_says_what_will_be_sent(tmp_path: Path) -> None:
    """Requests, span, rate and repeats, as counted by hand."""
    trace = PromptSet.summary(experiment(tmp_path, jsonl(LENGTHS), arrival="trace", min_requests=3))
    assert trace.text == "3 requests per pass in 27.482 s (0.109 per s); 3 prompts (format: wattdock's lengths)"
    # The two that are replayed, twice as fast.
    faster = experiment(tmp_path, jsonl(LENGTHS), arrival="trace", min_requests=2, trace_speed=2)
    ids = experiment(tmp_path, jsonl([{"token_ids": [1, 2]}] * 4), "i.jsonl", min_duration_s=9)
    text = jsonl([{"prompt": "x" * length} for length in (*range(1, 10), 9, 9, 300)])
    texts, few = (experiment(tmp_path, text, "t.jsonl", prompts=prompts) for prompts in ({}, {"count": 5}))
    least = experiment(tmp_path, text, "t.jsonl", batch_size=2, min_requests=3)
    again = experiment(tmp_path, text, "t.jsonl", min_requests=18)
    five: dict[str, Any] = {"min_requests": 18, "prompts": {"count": 5}}
    five_again = experiment(tmp_path, text, "t.jsonl", **five)
    arriving = experiment(tmp_path, text, "t.jsonl", arrival="poisson", rate_per_s=1, **five)
    for config, values in (
        (faster, ("2 requests", "5.2675 s")),
        (texts, ("12 requests", "; 12 prompts")),
        (few, ("5 requests", "; 5 of 12 prompts")),
        (least, ("3 requests", "; 3 of 12 prompts")),
        (again, ("18 requests", "each is sent 1.5 times in a pass")),
        (five_again, ("18 requests", "; 5 of 12 prompts", "each is sent 3.6 times in a pass")),
        (arriving, ("18 requests", "; 5 of 12 prompts", "each is sent 3.6 times in a pass")),
        (ids, ("at least 4 requests", "; 4 prompts")),
    ):
        assert [value for value in values if value not in PromptSet.summary(config).text] == []


def test_no_record_is_of_two_formats() -> None:
    """Each format needs a key that no other one has, or that the other one needs company for."""
    for form in FORMATS:
        for other in FORMATS:
            assert form is other or not (form.needed | other.needed) <= (form.keys & other.keys) or not form.needed


def test_a_chat_of_several_messages_has_no_known_length(tmp_path: Path) -> None:
    """Its messages are not its tokens: the long run of such prompts is not declared."""
    talk = {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is a watt?"}]}
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({**talk, "max_tokens": 50}) + "\n")
    config = ExperimentConfig.model_validate({"workload": {"prompts": {"source": str(path)}}})
    assert load_prompts(config, pass_index=0).means == (None, 50)
