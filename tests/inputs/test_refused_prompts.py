"""What a file of prompts or a trace must not hold, answered with its line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from make.prompt_files import AZURE_2023, AZURE_2024, BAILIAN, BURSTGPT, MESSAGES, MOONCAKE, VLLM, jsonl, read
from refused import raises

from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def turns(*said: tuple[str | None, Any], **more: Any) -> str:
    """Return a record with the messages of a chat: roles and contents."""
    return jsonl([{"messages": [{"role": role, "content": content, **more} for role, content in said]}])


@pytest.mark.parametrize(
    ("text", "values"),
    [
        # Not JSON, not a record, not one of a format.
        ("{prompt: x}", "1: JSON"),
        ('{"prompt": "a"}\nnull', "2: null"),
        ('{"prompt": "a"}\n"hello"', '2: "hello"'),
        ('[{"role": "user", "content": "x"}]\n', '1: content, role {"prompt": {"messages":'),
        ('[["prompt"]]', '1: ["prompt"]'),
        ('{"text": "x"}', "1: text"),
        ("in,out\n4,5\n", "1: in, out Azure"),
        ('{"prompt": "a"}\n\n{"text": "x"}', "3: 'text' prompt, token_ids"),
        ('{"prompt": "a"}\n{}', "2: prompt token_ids []"),
        ('{"prompt": "x", "token_ids": [1]}', "1: prompt token_ids"),
        ('[{"prompt": "a"}\n', "1: JSON"),
        ('[{"prompt": "a"},]', "1: JSON"),
        ('[{"prompt": "a"}] {"prompt": "b"}', "1: JSON"),
        ('[{"prompt":\n x}]', "1: JSON"),
        (jsonl([{"k" * 9_999: 1}]), "1: kkk"),
        # Prompts and limits.
        ('{"prompt": 5}', "1: prompt 5"),
        ('{"prompt": "  "}', "1: prompt"),
        (jsonl([{"prompt": "a \ud83d b"}]), "1: prompt surrogate"),
        ('{"token_ids": []}', "1: token_ids []"),
        ('{"token_ids": [1, -2]}', "1: token_ids [1, -2]"),
        ('{"token_ids": [true]}', "1: token_ids [true]"),
        (jsonl([{"token_ids": [2**32]}]), "1: token_ids [4294967296]"),
        ('{"token_ids": [1, 1000]}', "1: id 1000"),
        ('{"prompt": "x", "max_output_tokens": 0}', "1: max_output_tokens 0;"),
        ('{"prompt": "x", "max_output_tokens": 1.5}', "1: max_output_tokens 1.5"),
        ('{"input_tokens": 5}', "1: output_tokens"),
        ('{"input_tokens": true, "output_tokens": 1}', "1: input_tokens true"),
        ('{"input_tokens": "4", "output_tokens": 5}', "1: input_tokens 4"),
        (jsonl([{"input_tokens": "4\n5", "output_tokens": 5}]), "1: input_tokens"),
        ("input_tokens,output_tokens\n4,\n", "2: output_tokens null"),
        ("input_tokens,output_tokens\n4,5\n4.5,5\n", "3: input_tokens 4.5"),
        ("input_tokens,output_tokens\n99999999999999999999,5\n", "2: input_tokens 99999999999999999999"),
        ('input_tokens,output_tokens\n"' + "9" * 200_000 + '",5\n', "2: input_tokens 999"),
        ("prompt,output_tokens\n,2\n", "2: prompt"),
        # Keys that another format has, or none: which of two is the work?
        ('prompt,input_tokens,output_tokens\n"line one\nline two",60,4\n', "1: 'prompt'"),
        ("input_length,output_length,text\n60,4,x\n", "1: 'text'"),
        (BURSTGPT.replace("Log Type", "Prompt"), "1: 'Prompt'"),
        (AZURE_2023.replace("TIMESTAMP", "NumImages"), "1: 'NumImages'"),
        (jsonl([{**MOONCAKE[0], "prompt": "x"}]), "1: 'prompt'"),
        (jsonl([VLLM[0], {**VLLM[0], "prompt_len": 3}]), "2: 'prompt_len'"),
        (jsonl([{"task_id": 1, "prompt": "x", "media_paths": [], "output_tokens": 1}]), "1: 'media_paths'"),
        (jsonl([{**MESSAGES[0], "temperature": 1}]), "1: 'temperature'"),
        (jsonl([BAILIAN[0], MOONCAKE[0]]), "2: chat_id"),
        ('"in\nput_tokens",output_tokens\n4,5\n', "1:"),
        (jsonl([{**MESSAGES[0], "max_completion_tokens": 8}]), "1: max_completion_tokens max_tokens"),
        # Of two equal columns or keys the last would count.
        ("input_tokens,output_tokens, input_tokens\n1,2,3\n", "1: 'input_tokens'"),
        ('{"prompt": "a"}\n{"prompt": "a", "prompt": "b"}\n', "2: 'prompt'"),
        ('{"messages": [{"role": "user", "content": "a", "content": "b"}]}', "1: 'content'"),
        ('[{"prompt": "a"},\n\n{"token_ids": [1], "token_ids": [2]}]', "3: 'token_ids'"),
        ('{"a": 1, "' + "k" * 9_999 + '": 1, "' + "k" * 9_999 + '": 2}', "1: kkk"),
        # Cells of CSV.
        ("input_tokens,output_tokens\n1,2\n1,2,3\n", "3: 3 2"),
        ("input_tokens,output_tokens\n1,2\n1\n", "3: 1 2"),
        ('prompt,output_tokens\n"a\n\nb",2\n"c",2,\n', "5: 3 2"),
        ('prompt,output_tokens\n"a"b,2\n', "2: CSV"),
        ('prompt,output_tokens\nx,2\n"a,2\n', "3: CSV"),
        # Instants that are none, have no known unit, or run backwards.
        (AZURE_2024.replace("05-10", "02-31"), "2: TIMESTAMP instant"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,4,5\n", "2: TIMESTAMP yesterday, instant"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n0,4,5\n60,4,5\n", "2: TIMESTAMP 0, instant"),
        ("Timestamp,Request tokens,Response tokens\ninf,4,5\n", "2: Timestamp inf, instant"),
        (jsonl(MOONCAKE[::-1]), "2: before"),
        ("arrival_s,input_tokens,output_tokens\n2,4,5\n\n1,4,5\n", "4: before"),
        (jsonl([{**MOONCAKE[0], "timestamp": "0"}]), "1: timestamp 0, instant"),
        (jsonl([{**MOONCAKE[0], "timestamp": True}]), "1: timestamp true, instant"),
        (jsonl([{**MOONCAKE[0], "timestamp": 10**400}]), "1: timestamp 1000 instant"),
        # GuideLLM writes seconds under these keys, AIPerf milliseconds.
        ("timestamp,input_length,output_length\n0,4,5\n60,4,5\n", "1: hash_ids"),
        # Conversations that cannot be sent as they stand; flattened in silence, they would be other prompts.
        (turns(("user", "u"), ("assistant", "a")), "1: messages assistant;"),
        (turns(("tool", "t"), ("user", "u")), "1: messages tool;"),
        (turns((None, "u")), "1: messages null;"),
        (turns(("system", " "), ("user", "u")), "1: content text"),
        (turns(("user", "\ude00")), "1: content surrogate"),
        (turns(("user", "u"), name="x"), "1: 'name'"),
        (turns(("user", [{"type": "image_url", "image_url": "x"}])), "1: content image_url text"),
        (turns(("user", [{"type": "text", "text": "a"}])), "1: content text"),
        ('{"messages": []}', "1: messages [] list"),
        ('{"messages": "Hi"}', "1: messages Hi list"),
        ('{"conversations": [{"from": "human", "value": "u", "image": "x"}]}', "1: 'image'"),
        ('{"conversations": [{"from": "human", "value": 5}]}', "1: value 5 text"),
        (jsonl([{"conversations": [{"from": "human", "value": "cut \ud83d"}]}]), "1: value surrogate"),
        ('{"conversations": ["u"]}', '1: conversations ["u"] list'),
    ],
)
def test_a_record_that_cannot_be_sent_as_it_stands_is_refused_with_its_line(
    tmp_path: Path, text: str, values: str
) -> None:
    """In one line, in every format and every kind of file."""
    with raises(ConfigError, *f"prompts:{values}".split()) as caught:
        read(tmp_path, text, "prompts")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_whole_surrogate_pair_is_one_character(tmp_path: Path) -> None:
    """JSON writes it so."""
    assert read(tmp_path, jsonl([{"prompt": "\ud83d\ude00"}])).items == ("😀",)
