"""Prompt files and traces as their writers make them, and experiments that read them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from seams.inputs import Source, read_source

from wattdock.config import ExperimentConfig

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
LENGTHS: Records = [
    {"input_tokens": 655, "output_tokens": 52, "arrival_s": 0},
    {"input_tokens": 672, "output_tokens": 26, "arrival_s": 10.535},
    {"input_tokens": 520, "output_tokens": 52, "arrival_s": 27.482},
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


def jsonl(records: Records) -> str:
    """Return records as JSON, one a line."""
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
    """Return what a file with a text holds, for a model of 1,000 token ids."""
    source = read_source(experiment(tmp_path, text, name, **more), 1000)
    assert source
    return source
