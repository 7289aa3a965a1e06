"""Turn prompts into token ids, and ids into text, with a Hugging Face tokenizer, the same way for every backend.

The tokenizer is duck-typed: nothing is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock_runner.backend import Prompt, Workload


@dataclass(frozen=True)
class EncodedPrompt:
    """One prompt ready to run; `position` is its place among the pass's prompts, from 0."""

    position: int
    ids: list[int]
    max_output_tokens: int


def encode_prompts(tokenizer: Any, workload: Workload, prompts: Sequence[Prompt]) -> tuple[EncodedPrompt, ...]:
    """Return the token ids of each prompt, in order; text is one user message where the workload wants a template.

    Raises:
        InvalidRequest: Text without a tokenizer, or a prompt without a single token.
    """
    encoded = tuple(
        EncodedPrompt(
            position,
            _encode(tokenizer, prompt.content, chat_template=workload.chat_template),
            workload.max_output_tokens if prompt.max_output_tokens is None else prompt.max_output_tokens,
        )
        for position, prompt in enumerate(prompts)
    )
    if empty := [prompt.position for prompt in encoded if not prompt.ids]:
        raise InvalidRequest(f"prompt {empty[0]} has no tokens")
    return encoded


def require_servable(prompts: Sequence[EncodedPrompt], vocab_size: int, context_tokens: int | None) -> None:
    """Accept only prompts that the model knows all ids of, and whose answers fit behind them.

    Args:
        context_tokens: Positions that the model has; None is unlimited.

    Raises:
        InvalidRequest: Names the prompt and both figures.
    """
    for prompt in prompts:
        tokens, limit = len(prompt.ids), prompt.max_output_tokens
        if (largest := max(prompt.ids)) >= vocab_size:
            raise InvalidRequest(f"prompt {prompt.position} holds id {largest}, and the model has {vocab_size}")
        if context_tokens is not None and tokens + limit > context_tokens:
            raise InvalidRequest(
                f"prompt {prompt.position} needs {tokens} + {limit} positions, and the model has {context_tokens}"
            )


def decode(tokenizer: Any, ids: Sequence[int]) -> str | None:
    """Return ids as text, special tokens left out; None without a tokenizer."""
    return None if tokenizer is None else str(tokenizer.decode(ids, skip_special_tokens=True))


def _encode(tokenizer: Any, content: str | tuple[int, ...], *, chat_template: bool) -> list[int]:
    if not isinstance(content, str):
        return list(content)
    if tokenizer is None:
        raise InvalidRequest("this model folder has no tokenizer; send prompts as token ids")
    # A template writes its own special tokens; the tokenizer must not add a second set.
    templated = chat_template and bool(tokenizer.chat_template)
    if templated:
        messages = [{"role": "user", "content": content}]
        content = str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    ids = list(tokenizer(content, add_special_tokens=not templated).input_ids)
    bos = tokenizer.bos_token_id
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids
