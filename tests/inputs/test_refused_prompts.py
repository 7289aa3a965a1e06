"""What a file of prompts or a trace must not hold, answered with its line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from make.prompt_files import MESSAGES, VLLM, jsonl, read
from refused import raises

from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


LENGTHS = {"input_tokens": 4, "output_tokens": 5}


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
        (jsonl([VLLM[0], {**VLLM[0], "prompt_len": 3}]), "2: 'prompt_len'"),
        (jsonl([{**MESSAGES[0], "temperature": 1}]), "1: 'temperature'"),
        (jsonl([{**MESSAGES[0], "max_completion_tokens": 8}]), "1: max_completion_tokens max_tokens"),
        ('{"prompt": "a"}\n{"prompt": "a", "prompt": "b"}\n', "2: 'prompt'"),
        ('{"messages": [{"role": "user", "content": "a", "content": "b"}]}', "1: 'content'"),
        ('[{"prompt": "a"},\n\n{"token_ids": [1], "token_ids": [2]}]', "3: 'token_ids'"),
        ('{"a": 1, "' + "k" * 9_999 + '": 1, "' + "k" * 9_999 + '": 2}', "1: kkk"),
        ("prompt,output_tokens\nx,2\n", "1: JSON"),
        # Keys that another format has, or none: which of two is the work?
        (jsonl([{**LENGTHS, "prompt": "x"}]), "1: 'prompt'"),
        (jsonl([LENGTHS, VLLM[0]]), "2: 'prompt'"),
        # Instants that are none, or run backwards.
        (jsonl([LENGTHS | {"arrival_s": "2024-05-10"}]), "1: arrival_s 2024-05-10 seconds"),
        (jsonl([LENGTHS | {"arrival_s": True}]), "1: arrival_s true seconds"),
        (jsonl([LENGTHS | {"arrival_s": 10**400}]), "1: arrival_s 1000 seconds"),
        (jsonl([LENGTHS | {"arrival_s": at_s} for at_s in (2, 1)]), "2: before"),
        ("[" + jsonl([LENGTHS | {"arrival_s": 1e300}]) + "]", "1: arrival_s 1e+300 seconds"),
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
