"""All that wattdock uses of TensorRT-LLM's objects, as types: the type checker allows nothing else.

A test holds these names against what TensorRT-LLM's source has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class CompletionOutput(Protocol):
    """`tensorrt_llm.executor.result.CompletionOutput`: one sequence of a request.

    Attributes:
        token_ids_diff: Ids that came with the latest response.
        finish_reason: "stop", "length", "timeout" or "cancelled"; None while it runs.
    """

    @property
    def token_ids_diff(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def finish_reason(self) -> str | None: ...  # noqa: D102


class RequestOutput(Protocol):
    """`tensorrt_llm.llmapi.llm.RequestOutput`: a request under way; iterating waits for its next response.

    Attributes:
        cached_tokens: Tokens of the prompt that came from the KV cache.
    """

    @property
    def outputs(self) -> Sequence[CompletionOutput]: ...  # noqa: D102
    @property
    def cached_tokens(self) -> int: ...  # noqa: D102
    def abort(self) -> None: ...  # noqa: D102
    def __aiter__(self) -> RequestOutput: ...
    async def __anext__(self) -> RequestOutput: ...


class LlmArgs(Protocol):
    """`tensorrt_llm.llmapi.llm_args.TorchLlmArgs` (or TrtLlmArgs): what an engine was made with, validated."""

    @property
    def max_batch_size(self) -> int: ...  # noqa: D102
    @property
    def max_num_tokens(self) -> int: ...  # noqa: D102
    @property
    def max_seq_len(self) -> int | None: ...  # noqa: D102
    @property
    def enable_chunked_prefill(self) -> bool: ...  # noqa: D102
    @property
    def tensor_parallel_size(self) -> int: ...  # noqa: D102
    @property
    def pipeline_parallel_size(self) -> int: ...  # noqa: D102


class Llm(Protocol):
    """`tensorrt_llm.LLM`, or that of `tensorrt_llm._tensorrt_engine`."""

    @property
    def args(self) -> LlmArgs: ...  # noqa: D102
    def generate_async(  # noqa: D102
        self, inputs: list[int], sampling_params: object, *, streaming: bool
    ) -> RequestOutput: ...
    def shutdown(self) -> None: ...  # noqa: D102


class SavableLlm(Llm, Protocol):
    """The LLM of `tensorrt_llm._tensorrt_engine`, which builds an engine that can be kept."""

    def save(self, engine_dir: str) -> None: ...  # noqa: D102
