"""Print what `encode_prompts` makes of prompts with a real tokenizer; runs in a backend's environment.

Reads cases from standard input: {"folder", "template", "prompts", "chat", "variables", "time_s"}.
A prompt is a text, or a list of messages, each a role and a text.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

from wattdock_runner.checkpoint import encode_prompts, read_tokenizer
from wattdock_runner.errors import InvalidRequest
from wattdock_runner.recorder import PassRecorder
from wattdock_runner.values import Arrival, Chat, LoadOrder, Prompt, Workload


def outcome(case: dict[str, Any]) -> dict[str, Any]:
    """Return what becomes of a case's prompts."""
    tokenizer = read_tokenizer(AutoTokenizer, LoadOrder(Path(case["folder"]), "auto", {}))
    if "template" in case:
        tokenizer.chat_template = case["template"]
    workload = Workload(
        Arrival.BATCH,
        in_flight=1,
        max_output_tokens=1,
        chat_template=case.get("chat", True),
        chat_template_kwargs=case.get("variables", {}),
        template_time_s=case.get("time_s", 0),
    )
    contents = [item if isinstance(item, str) else Chat(tuple(map(tuple, item))) for item in case["prompts"]]
    prompts, recorder = [Prompt(content) for content in contents], PassRecorder()
    try:
        encoded = encode_prompts(tokenizer, workload, prompts, recorder)
    except InvalidRequest as error:
        return {"refused": str(error)}
    assert chat_template_utils.datetime is datetime, "transformers keeps the study's clock"
    return {
        "texts": [tokenizer.decode(prompt.ids) for prompt in encoded],
        "ids": [prompt.ids for prompt in encoded],
        "sha256": recorder.rendered_sha256,
        "asked_time": recorder.template_asked_time,
        "transformers": [_by_transformers(tokenizer, chat) for chat in case["prompts"] if isinstance(chat, list)],
    }


def _by_transformers(tokenizer: Any, chat: list[list[str]]) -> list[int]:
    """Return the ids that transformers' own rendering gives messages."""
    messages = [{"role": role, "content": text} for role, text in chat]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def main() -> None:
    """Answer the cases, and say which parameters transformers' own rendering has."""
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    outcomes = [outcome(case) for case in json.load(sys.stdin)]
    parameters = list(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)
    print(json.dumps({"outcomes": outcomes, "parameters": parameters}))


if __name__ == "__main__":
    main()
