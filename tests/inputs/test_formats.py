"""Prompt files and traces as their writers make them: which format a file is of, what it says, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refused import raises
from seams.inputs import FORMATS, Source, read_source
from seams.runner import wire

from wattdock.config import ExperimentConfig
from wattdock.errors import Cause, ConfigError
from wattdock.inputs import PromptSet, check_prompts, load_prompts
from wattdock.runner import PassRequest
from wattdock_runner.backend import Chat
from wattdock_runner.messages import pass_from

if TYPE_CHECKING:
    from pathlib import Path
Records: TypeAlias = list[dict[str, Any]]

BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n"
    "19440161.0,d5983bf9,2,ChatGPT,36,29,65,API log\n"
    "19440210.0,a5c69b35,8,GPT-4,1779,123,1902,Conversation log\n"
)
AZURE_2023 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,110,27\r\n"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00+00:00,2162,5\n2024-05-10 00:00:00.009930+00:00,2399,6\n"
)
MOONCAKE: Records = [
    {"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]},
    {"timestamp": 10535, "input_length": 672, "output_length": 26, "hash_ids": [46, 47]},
    {"timestamp": 27482, "input_length": 520, "output_length": 52, "hash_ids": [46, 2354]},
]
BAILIAN: Records = [
    {"chat_id": number, "parent_chat_id": -1, "timestamp": at_s, "input_length": tokens, "output_length": 4}
    | {"type": "text", "turn": 1, "hash_ids": blocks}
    for number, at_s, tokens, blocks in ((1, 0.0, 60, [1, 2, 3, 4]), (2, 30.5, 33, [1, 2, 7]), (3, 61.114, 17, [1, 9]))
]
SHAREGPT: Records = [
    {"id": "a_0", "conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]},
    {"id": "b_1", "conversations": [{"from": "gpt", "value": "And so on."}, {"from": "human", "value": "Go on"}]},
    {"id": "c_0", "conversations": [{"from": "human", "value": "Why?"}]},
    {"id": "d_0", "conversations": []},
]
SHAREGPT_ROLES = [{"conversation": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "No."}]}]
MESSAGES: Records = [
    {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7, "model": "gpt-4o"},
    {"messages": [{"role": "user", "content": "Hello"}]},
]
VLLM: Records = [
    {"prompt": "What is the capital of India?", "output_tokens": 10},
    {"prompt": "And?", "output_tokens": 152},
]
TENSORRT: Records = [
    {"task_id": 1, "input_ids": [3, 4], "output_tokens": 128},
    {"task_id": 2, "prompt": "Na", "output_tokens": 1},
]


def jsonl(records: Records) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def experiment(tmp_path: Path, text: str, name: str = "p.jsonl", **more: Any) -> ExperimentConfig:
    """Return an experiment whose prompts come from a file with a text."""
    path = tmp_path / name
    path.write_bytes(text.encode())
    prompts = {"source": str(path)} | more.pop("prompts", {})
    section = {"vllm": {"enable_prefix_caching": True}} if more.pop("caching", False) else {}
    setting = {"backend": "vllm", "model": "shape:tiny-llama", **section, "workload": {"prompts": prompts, **more}}
    return ExperimentConfig.model_validate(setting)


def read(tmp_path: Path, text: str, name: str = "p.jsonl", **more: Any) -> Source:
    source = read_source(experiment(tmp_path, text, name, **more), 1000)
    assert source
    return source


@pytest.mark.parametrize(
    ("name", "text", "form", "items", "limits", "ignored"),
    [
        (
            *("burst.csv", BURSTGPT, "BurstGPT", (906, 36, 1779), (446, 29, 123)),
            {"Session ID", "Elapsed time", "Model", "Total tokens", "Log Type", "Timestamp"},
        ),
        ("2023.csv", AZURE_2023, "Azure", (4808, 110), (10, 27), {"TIMESTAMP"}),
        ("2024.csv", AZURE_2024, "Azure", (2162, 2399), (5, 6), {"TIMESTAMP"}),
        ("mooncake.jsonl", jsonl(MOONCAKE), "Mooncake", (655, 672, 520), (52, 26, 52), {"timestamp", "hash_ids"}),
        (
            *("bailian.jsonl", jsonl(BAILIAN), "Bailian", (60, 33, 17), (4, 4, 4)),
            {"chat_id", "parent_chat_id", "type", "turn", "timestamp", "hash_ids"},
        ),
        (
            *("sharegpt.json", json.dumps(SHAREGPT, indent=2), "ShareGPT", ("Why?", "Why?"), (None, None)),
            {"id", "all turns but the first", "2 conversations without a user's turn first"},
        ),
        ("p.jsonl", jsonl(SHAREGPT_ROLES), "ShareGPT", ("Why?",), (None,), {"all turns but the first"}),
        ("m.jsonl", jsonl(MESSAGES), "OpenAI messages", ("Hi", "Hello"), (7, None), {"model"}),
        ("v.jsonl", jsonl(VLLM), "vLLM's custom data set", (VLLM[0]["prompt"], "And?"), (10, 152), set()),
        ("t.jsonl", jsonl(TENSORRT), "TensorRT-LLM", (array("I", [3, 4]), "Na"), (128, 1), {"task_id"}),
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


@pytest.mark.parametrize(
    ("name", "text", "arrivals_s"),
    [
        ("burst.csv", BURSTGPT, (0, 51, 100)),
        ("2023.csv", AZURE_2023, (0, 0.052)),
        ("2024.csv", AZURE_2024, (0, 0.00993)),
        ("mooncake.jsonl", jsonl(MOONCAKE), (0, 10.535, 27.482)),
        ("bailian.jsonl", jsonl(BAILIAN), (0, 30.5, 61.114)),
        (
            "dates.jsonl",
            jsonl([{**BAILIAN[0], "timestamp": f"2024-05-10T0{h}:00:00+02:00"} for h in (1, 2)]),
            (0, 3600),
        ),
    ],
)
def test_instants_are_replayed_in_the_unit_of_their_format(
    tmp_path: Path, name: str, text: str, arrivals_s: tuple[float, ...]
) -> None:
    """Exactly, but for the last digit of Azure's dates, which have ticks of 100 ns."""
    config = experiment(tmp_path, text, name, arrival="trace", min_requests=len(arrivals_s))
    assert [*read(tmp_path, text, name).arrivals_s] == pytest.approx(arrivals_s, abs=1e-6)
    sent = load_prompts(config, pass_index=0, vocab_size=1000, min_requests=len(arrivals_s))
    assert sent.arrivals_ns == tuple(round(at_s * 1e9) for at_s in arrivals_s)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.csv", AZURE_2024.replace("05-10", "02-31"), ":2: TIMESTAMP is .* is no instant"),
        (
            "p.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n0,4,5\n60,4,5\n",
            ":2: TIMESTAMP is 0, which is no instant",
        ),
        ("p.jsonl", jsonl(MOONCAKE[::-1]), ":2: comes before the line above"),
        ("p.jsonl", jsonl([{**MOONCAKE[0], "timestamp": "0"}]), ":1: timestamp is 0, which is no instant"),
        ("p.jsonl", jsonl([{**MOONCAKE[0], "timestamp": True}]), ":1: timestamp is true, which is no instant"),
        ("p.jsonl", jsonl([{**MOONCAKE[0], "timestamp": 10**400}]), ":1: timestamp is 1000.* is no instant"),
        # GuideLLM writes seconds under these keys, AIPerf milliseconds.
        ("p.csv", "timestamp,input_length,output_length\n0,4,5\n60,4,5\n", ":1: has none of hash_ids"),
    ],
)
def test_instants_that_contradict_each_other_or_have_no_known_unit_are_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    """With the line that holds the first of them."""
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text, name, arrival="trace")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        # Text beside lengths: which of the two is the work?
        ("p.csv", 'prompt,input_tokens,output_tokens\n"line one\nline two",60,4\n', ":1: unknown key 'prompt'"),
        ("p.csv", "input_length,output_length,text\n60,4,x\n", ":1: unknown key 'text'"),
        ("p.csv", BURSTGPT.replace("Log Type", "Prompt"), ":1: unknown key 'Prompt'"),
        ("p.csv", AZURE_2023.replace("TIMESTAMP", "NumImages"), ":1: unknown key 'NumImages'"),
        ("p.jsonl", jsonl([{**MOONCAKE[0], "prompt": "x"}]), ":1: unknown key 'prompt'"),
        ("p.jsonl", jsonl([VLLM[0], {**VLLM[0], "prompt_len": 3}]), ":2: unknown key 'prompt_len'"),
        ("p.jsonl", jsonl([{"task_id": 1, "prompt": "x", "media_paths": [], "output_tokens": 1}]), "'media_paths'"),
        ("p.jsonl", jsonl([{**MESSAGES[0], "tools": []}]), ":1: unknown key 'tools'"),
        ("p.jsonl", jsonl([BAILIAN[0], MOONCAKE[0]]), ":2: has none of chat_id"),
        # Of two equal columns or keys the last would count.
        ("p.csv", "input_tokens,output_tokens, input_tokens\n1,2,3\n", ":1: two columns are called 'input_tokens'"),
        (
            "p.csv",
            "arrival_s,arrival_s,input_tokens,output_tokens\n1,2,3,4\n",
            ":1: two columns are called 'arrival_s'",
        ),
        ("p.csv", "prompt,prompt\na,b\n", ":1: two columns are called 'prompt'"),
        ("p.jsonl", '{"prompt": "a"}\n{"prompt": "a", "prompt": "b"}\n', ":2: not JSON .duplicate key 'prompt'"),
        (
            "p.jsonl",
            '{"messages": [{"role": "user", "content": "a", "content": "b"}]}',
            ":1: .*duplicate key 'content'",
        ),
        (
            "p.jsonl",
            '{"custom_id": "a", "body": {"max_tokens": 1, "max_tokens": 2}}',
            ":1: .*duplicate key 'max_tokens'",
        ),
        ("p.json", '[{"prompt": "a"},\n\n{"token_ids": [1], "token_ids": [2]}]', ":3: .*duplicate key 'token_ids'"),
        (
            "p.jsonl",
            jsonl([{**MESSAGES[0], "max_completion_tokens": 8}]),
            ":1: give exactly one of max_tokens and max_comp",
        ),
        # As strict as the JSONL reader.
        ("p.csv", "input_tokens,output_tokens\n1,2\n1,2,3\n", ":3: has 3 cells, and the header 2"),
        ("p.csv", "input_tokens,output_tokens\n1,2\n1\n", ":3: has 1 cell, and the header 2"),
        ("p.csv", 'prompt,output_tokens\n"a\n\nb",2\n"c",2,\n', ":5: has 3 cells, and the header 2"),
        ("p.csv", 'prompt,output_tokens\n"a"b,2\n', ":2: not CSV"),
        ("p.csv", 'prompt,output_tokens\nx,2\n"a,2\n', ":3: not CSV"),
        ("p.csv", "prompt,output_tokens\n,2\n", ":2: prompt is ; it must be a text"),
        ("p.csv", "input_tokens,output_tokens\n4,\n", ":2: output_tokens is null; it must be a whole number"),
        ("p.jsonl", jsonl([{"input_tokens": "4", "output_tokens": 5}]), ":1: input_tokens is 4; it must be a whole"),
        ("p.json", '[{"prompt": "a"}\n', ":1: not JSON"),
        ("p.json", '[{"prompt": "a"},]', ":1: not JSON"),
        ("p.json", '[{"prompt": "a"}] {"prompt": "b"}', ":1: not JSON"),
        ("p.json", '[{"prompt":\n x}]', ":1: not JSON"),
        ("p.jsonl", jsonl([{"input_tokens": "4\n5", "output_tokens": 5}]), ":1: input_tokens is .4.n5"),
        ("p.csv", '"in\nput_tokens",output_tokens\n4,5\n', ":1: unknown key"),
        ("p.jsonl", jsonl([{"k" * 9_999: 1}]), ":1: k+... are keys of no known format"),
        ("p.jsonl", '{"a": 1, "' + "k" * 9_999 + '": 1, "' + "k" * 9_999 + '": 2}', ":1: .*duplicate key"),
        ("p.jsonl", jsonl([{**MESSAGES[0], "temperature": 1}]), ":1: unknown key 'temperature'"),
        ("p.json", '[["prompt"]]', ":1: .* is no object"),
    ],
)
def test_what_is_unknown_double_or_malformed_is_refused_with_its_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    """In one line, in every format and every kind of file."""
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, text, name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]},
            "is of assistant; it",
        ),
        (
            {"messages": [{"role": "tool", "content": "t"}, {"role": "user", "content": "u"}]},
            "have the role tool; known",
        ),
        ({"messages": [{"content": "u"}]}, "have the role null; known"),
        ({"messages": [{"role": "system", "content": " "}, {"role": "user", "content": "u"}]}, "must be a text"),
        ({"messages": []}, "must be a list of messages"),
        ({"messages": "Hi"}, "must be a list of messages"),
        ({"messages": [{"role": "user", "content": "u", "name": "x"}]}, "unknown key 'name' in a message"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "must be a text"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}]}, "must be a text"),
        ({"conversations": [{"from": "human", "value": "u", "image": "x"}]}, "unknown key 'image' in a message"),
        ({"conversations": [{"from": "human", "value": 5}]}, "value is 5; it must be a text"),
        ({"conversations": ["u"]}, "must be a list of turns"),
    ],
)
def test_a_conversation_that_cannot_be_sent_as_it_stands_is_refused(
    tmp_path: Path, record: dict[str, Any], message: str
) -> None:
    """Flattened in silence, it would be another prompt."""
    with pytest.raises(ConfigError, match=f":1: .*{message}"):
        read(tmp_path, jsonl([record]))


CHAT = (("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!"), ("user", "Why?"))


def test_several_messages_are_a_chat_that_is_sent_as_it_is(tmp_path: Path) -> None:
    """Roles and texts in order, through the wire to the runner; a chat counts as text wherever text counts."""
    chat: Records = [{"role": role, "content": content} for role, content in CHAT]
    records: Records = [{"messages": chat}, {"messages": chat[1:2]}, {"messages": chat}]
    config = experiment(tmp_path, jsonl(records), prompts={"count": 3})
    source, sent = read_source(config, 1000), load_prompts(config, pass_index=0)
    assert source
    assert source.items == (CHAT, "Hi", CHAT)
    summary = PromptSet.summary(config).text
    assert "33.3% of them repeat" in summary
    assert "prompt tokens" not in summary
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


def test_a_csv_cell_may_be_as_long_as_a_prompt(tmp_path: Path) -> None:
    """Python's reader stops at 131,072 characters, some 30,000 tokens."""
    assert read(tmp_path, f"prompt\n{'x' * 200_000}\n", "p.csv").items == ("x" * 200_000,)


@pytest.mark.parametrize(
    ("record", "key"),
    [
        ({"prompt": "a \ud83d b"}, "prompt"),
        ({"messages": [{"role": "user", "content": "\ude00"}]}, "content"),
        ({"conversations": [{"from": "human", "value": "cut \ud83d"}]}, "value"),
    ],
)
def test_half_a_surrogate_pair_is_refused_with_its_line(tmp_path: Path, record: dict[str, Any], key: str) -> None:
    """No UTF-8 holds it, so the wire would fail; a whole pair is one character."""
    with raises(ConfigError, key):
        read(tmp_path, jsonl([record]))
    assert read(tmp_path, jsonl([{"prompt": "\ud83d\ude00"}])).items == ("😀",)


def test_a_text_in_a_csv_file_is_sent_with_its_line_breaks(tmp_path: Path) -> None:
    """Blank lines within a cell belong to the text; numbers stay text there."""
    text = 'prompt,max_output_tokens\r\n"a\r\n\r\nb",3\r\n\r\n42,\r\n'
    source = read(tmp_path, text, "p.csv")
    assert (source.items, source.max_output_tokens) == (("a\r\n\r\nb", "42"), (3, None))


def test_equal_blocks_are_equal_tokens_where_a_prefix_cache_is_on(tmp_path: Path) -> None:
    """Bailian's of 16 tokens, within a pass and never from one to the next; without the cache they are not used."""
    config = experiment(tmp_path, jsonl(BAILIAN), caching=True, arrival="trace")
    sent: Any = load_prompts(config, pass_index=0, vocab_size=1000, min_requests=3).items
    one, two, three = sent
    assert [len(prompt) for prompt in (one, two, three)] == [60, 33, 17]
    assert one[:32] == two[:32]
    assert one[:16] == three[:16]
    assert (one[16], one[32]) != (three[16], two[32])
    assert len(set(one)) > 50
    assert max(one) < 1000
    again, *_ = load_prompts(config, pass_index=0, vocab_size=1000, min_requests=3).items
    other, *_ = load_prompts(config, pass_index=1, vocab_size=1000, min_requests=3).items
    assert again == one
    assert other[:16] != one[:16]
    # The trace goes on from its beginning, with prompts that no cache has.
    repeated: Any = load_prompts(config, pass_index=0, vocab_size=1000, min_requests=6).items
    assert repeated[:3] == (one, two, three)
    assert repeated[3][:16] != one[:16]
    assert repeated[3][:16] == repeated[4][:16]
    assert "hash_ids" not in read(tmp_path, jsonl(BAILIAN), caching=True).ignored
    assert "hash_ids" in read(tmp_path, jsonl(BAILIAN)).ignored


def test_the_end_of_a_prompt_that_has_no_block_is_its_own(tmp_path: Path) -> None:
    """Where a trace gives ids to full blocks only."""
    pair = [{**BAILIAN[0], "input_length": 40, "hash_ids": [1, 2]}] * 2
    sent: Any = load_prompts(experiment(tmp_path, jsonl(pair), caching=True), pass_index=0, vocab_size=1000).items
    assert [len(prompt) for prompt in sent[:2]] == [40, 40]
    assert sent[0][:32] == sent[1][:32]
    assert sent[0][32:] != sent[1][32:]


def test_the_end_of_a_prompt_is_no_block_of_another_prompt(tmp_path: Path) -> None:
    """Whatever the ids of blocks are: small ones, and the largest."""
    ends = [{**BAILIAN[0], "input_length": 24, "hash_ids": [block]} for block in (0, 1, 2**59, 2**63 - 1)]
    sent: Any = load_prompts(experiment(tmp_path, jsonl(ends), caching=True), pass_index=0, vocab_size=1000).items
    eights = {bytes(prompt[start : start + 8]) for prompt in sent[:4] for start in (0, 8, 16)}
    assert len(eights) == 12


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({**MOONCAKE[0], "hash_ids": [1, 2, 3]}, "has 3 blocks, and 655 tokens have 2 of 512"),
        ({**BAILIAN[0], "hash_ids": []}, "has 0 blocks"),
        ({**BAILIAN[0], "hash_ids": [1, 2, 3, -4]}, "must be a list of whole numbers"),
        ({**BAILIAN[0], "hash_ids": "1 2 3 4"}, "must be a list of whole numbers"),
    ],
)
def test_blocks_that_are_not_the_prompt_s_are_refused_where_they_count(
    tmp_path: Path, record: dict[str, Any], message: str
) -> None:
    """As with another size of blocks than the format's."""
    with pytest.raises(ConfigError, match=f":1: hash_ids .*{message}"):
        read(tmp_path, jsonl([record]), caching=True)


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl", "p", "p.json.txt"])
def test_a_file_s_content_and_not_its_name_says_how_it_is_written(tmp_path: Path, name: str) -> None:
    """A bundle keeps a CSV under a name of its own."""
    for text in (AZURE_2023, f"\ufeff\r\n{AZURE_2023}", jsonl(MOONCAKE), json.dumps(MOONCAKE), f"\n {jsonl(MOONCAKE)}"):
        assert read(tmp_path, text, name).format == ("Azure" if "Context" in text else "Mooncake")


KINDS: tuple[Records, ...] = (MOONCAKE, BAILIAN, SHAREGPT, MESSAGES[:1], VLLM, TENSORRT[:1])


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


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_the_order_of_columns_says_nothing_and_a_column_twice_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    """As of the keys of JSON."""
    rows = list(csv.reader(io.StringIO(data.draw(st.sampled_from((BURSTGPT, AZURE_2023, AZURE_2024))))))
    order = data.draw(st.permutations(range(len(rows[0]))))

    def written(columns: list[int]) -> str:
        out = io.StringIO(newline="")
        csv.writer(out).writerows([row[column] for column in columns] for row in rows)
        return out.getvalue()

    given_order, shuffled = (read(tmp_path, written(list(columns)), "p.csv") for columns in (range(len(order)), order))
    assert (shuffled.rows, shuffled.arrivals_s) == (given_order.rows, given_order.arrivals_s)
    with raises(ConfigError, "p.csv"):
        read(tmp_path, written([*order, data.draw(st.sampled_from(order))]), "p.csv")


def test_a_plan_says_what_will_be_sent(tmp_path: Path) -> None:
    """Requests, span, rate, quantiles and repeats, as counted by hand."""
    trace = PromptSet.summary(experiment(tmp_path, jsonl(MOONCAKE), arrival="trace", min_requests=3))
    assert trace.text == (
        "3 requests per pass in 27.482 s (0.109 per s); 3 prompts (Mooncake); "
        "prompt tokens 655 / 672 / 672 (median / p90 / max); answer tokens 52 / 52 / 52 (median / p90 / max); "
        "ignored: hash_ids"
    )
    # The two that are replayed, twice as fast.
    begun = PromptSet.summary(experiment(tmp_path, jsonl(MOONCAKE), arrival="trace", min_requests=2, trace_speed=2))
    assert "2 requests per pass in 5.2675 s" in begun.text
    assert "prompt tokens 663.5 / 672 / 672" in begun.text
    texts = [{"prompt": "x" * length} for length in (*range(1, 10), 9, 9, 300)]
    text = PromptSet.summary(experiment(tmp_path, jsonl(texts), prompts={"count": 5}))
    assert text.text == (
        "5 requests per pass; 12 prompts (wattdock's prompts); 16.7% of them repeat an earlier one of the source"
    )
    ids = PromptSet.summary(experiment(tmp_path, jsonl([{"token_ids": [1, 2]}] * 4), min_duration_s=9)).text
    assert ids.startswith("at least 4 requests per pass; 4 prompts")
    assert "prompt tokens 2 / 2 / 2" in ids
    assert "75.0% of them repeat" in ids


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
