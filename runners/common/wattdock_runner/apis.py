"""How servers of engines are asked for completions, whether wattdock started them or found them running.

Must not know: how a server is started, engines' packages.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from wattdock_runner.errors import CacheTooSmall, InvalidRequest
from wattdock_runner.served import NO_ID, Api, Chunk
from wattdock_runner.values import Chat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.engine_server import HttpServer
    from wattdock_runner.values import Workload

FINISHED = {"limit": "length", "eos": "stop"}
# Settings that change no output; a GGUF file may set any of them otherwise.
NEUTRAL: dict[str, Any] = {"samplers": ["top_k", "top_p", "temperature"], "mirostat": 0, "top_n_sigma": -1.0}
NEUTRAL |= dict.fromkeys(("typical_p", "repeat_penalty"), 1.0)
NEUTRAL |= dict.fromkeys(("min_p", "xtc_probability", "dynatemp_range", "dry_multiplier"), 0.0)
PENALTIES = dict.fromkeys(("presence_penalty", "frequency_penalty"), 0.0)


def messages_of(content: str | Chat) -> list[dict[str, str]]:
    """Return a prompt as messages; a text is the user's."""
    pairs = (("user", content),) if isinstance(content, str) else content.messages
    return [{"role": role, "content": text} for role, text in pairs]


class OpenAiApi(Api):
    """Any server's completions and chat completions: it takes texts, and counts tokens itself.

    A prompt's ids are the bytes of its part of the request.

    Args:
        model: The model's name in requests.

    Source: OpenAI's API reference, "Create completion" and "Create chat completion", `stream_options.include_usage`.
    """

    path = "/v1/completions"
    tells_ids = False

    def __init__(self, model: str) -> None:
        self._model = model

    def ids_of(self, server: HttpServer, workload: Workload, content: str | Chat) -> Sequence[int]:  # noqa: ARG002
        """Return the part of a request that a prompt is, as bytes."""
        is_chat = isinstance(content, Chat) or workload.chat_template
        return json.dumps({"messages": messages_of(content)} if is_chat else {"prompt": content}).encode()

    def path_for(self, body: Mapping[str, Any]) -> str:
        """Return where a request is sent."""
        return "/v1/chat/completions" if "messages" in body else self.path

    def body(self, workload: Workload, prompt: EncodedPrompt) -> dict[str, Any]:
        """Return a request for text, with settings that few servers have only where they were asked for."""
        few = {"ignore_eos": True} if workload.ignore_eos else {}
        return {**json.loads(bytes(prompt.ids)), **self._settings(workload, prompt), **few}

    def _settings(self, workload: Workload, prompt: EncodedPrompt) -> dict[str, Any]:
        sampling = {name: value for name, value in vars(workload.sampling).items() if value or name == "temperature"}
        seed = {"seed": workload.seed + prompt.position} if workload.sampling.temperature > 0 else {}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        stop = {"stop": list(workload.stop)} if workload.stop else {}
        return {"model": self._model, "max_tokens": prompt.max_output_tokens, **stream, **sampling, **seed, **stop}

    def read(self, event: Mapping[str, Any]) -> Chunk:
        """Return the tokens of an event, and the counts of the event that has them."""
        usage, [choice, *_] = event.get("usage") or {}, event.get("choices") or [{}]
        reason = choice.get("finish_reason")
        return Chunk(
            self._tokens(choice),
            reason if reason in (None, "length", "abort") else "stop",
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            usage.get("completion_tokens"),
            usage.get("prompt_tokens"),
            choice.get("text") or (choice.get("delta") or {}).get("content") or "",
        )

    def _tokens(self, choice: Mapping[str, Any]) -> Sequence[int]:
        said = choice.get("delta") or choice
        has_text = any(said.get(name) for name in ("text", "content", "reasoning_content", "reasoning"))
        return (NO_ID,) if has_text else ()


class VllmApi(OpenAiApi):
    """vLLM's completions, which tell ids.

    Args:
        stops: Returns a request's settings of what ends an answer.

    Source: class CompletionRequest in vllm/entrypoints/openai/completion/protocol.py, classes TokenizeCompletionRequest
    and TokenizeChatRequest in vllm/entrypoints/serve/tokenize/protocol.py.
    """

    tells_ids = True
    token_counter = "vllm:generation_tokens_total"
    draft_counters = "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"
    # It looks for its engine each five seconds.
    dying_s = 7.0

    def __init__(self, model: str, stops: Callable[[Workload], Mapping[str, Any]]) -> None:
        super().__init__(model)
        self._stops = stops

    def body(self, workload: Workload, prompt: EncodedPrompt) -> dict[str, Any]:
        """Return a request for ids that leaves nothing to the server's or the checkpoint's defaults."""
        asked = {**self._settings(workload, prompt), "prompt": prompt.ids, "return_token_ids": True}
        neutral = {"top_k": workload.sampling.top_k, "min_p": 0.0, "repetition_penalty": 1.0, **PENALTIES}
        return {**asked, **neutral, **self._stops(workload)}

    def _tokens(self, choice: Mapping[str, Any]) -> Sequence[int]:
        return choice.get("token_ids") or ()

    def require_room(self, grown: Mapping[str, float]) -> None:
        """Refuse a pass in which the server stopped requests, and computed them again."""
        if stopped := grown.get("vllm:num_preemptions_total"):
            raise CacheTooSmall(
                f"the KV cache could not hold what was in flight: vLLM stopped requests {stopped:.0f} time(s) and "
                "computed them again; lower batch_size, or raise kv_cache_memory_bytes or gpu_memory_utilization"
            )

    def ids_of(self, server: HttpServer, workload: Workload, content: str | Chat) -> Sequence[int]:
        """Return the ids of a prompt by the server's tokenizer, and by its chat template if it has one."""
        asked: dict[str, Any] = {"model": self._model, "prompt": content}
        if workload.chat_template or isinstance(content, Chat):
            chat = {"messages": messages_of(content), "chat_template_kwargs": dict(workload.chat_template_kwargs)}
            try:
                return list(server.ask("/tokenize", {"model": self._model, **chat})["tokens"])
            except InvalidRequest as error:
                if "chat template" not in str(error) or isinstance(content, Chat) or workload.chat_template_kwargs:
                    raise
        return list(server.ask("/tokenize", asked)["tokens"])


class LlamaCppApi(Api):
    """llama.cpp's own endpoint, which tells ids.

    Source: tools/server/README.md of llama.cpp, POST /completion.
    """

    path = "/completion"
    # Its server now and then closes a connection that it has just offered to keep.
    keeps_alive = False

    def __init__(self, *, reads_text: bool = True) -> None:
        self.reads_text = reads_text

    def body(self, workload: Workload, prompt: EncodedPrompt) -> dict[str, Any]:
        """Return a request that leaves nothing to the server's defaults; a cached prompt is not computed."""
        return {
            "prompt": prompt.ids,
            "n_predict": prompt.max_output_tokens,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": False,
            "ignore_eos": workload.ignore_eos,
            "stop": list(workload.stop) if self.reads_text else [],
            **vars(workload.sampling),
            **NEUTRAL,
            **PENALTIES,
            "seed": workload.seed + prompt.position,
        }

    def read(self, event: Mapping[str, Any]) -> Chunk:
        """Return the ids of an event; it sends none for a token that ends within a character, but counts it."""
        if not event.get("stop"):
            return Chunk(event["tokens"], output_tokens=event["tokens_predicted"], text=event["content"])
        cached = event.get("timings", {}).get("cache_n")
        reason = FINISHED.get(event["stop_type"], "stop")
        return Chunk(event["tokens"], reason, cached, event["tokens_predicted"], event["tokens_evaluated"])

    def ids_of(self, server: HttpServer, workload: Workload, content: str | Chat) -> Sequence[int]:
        """Return the ids of a prompt by the server's tokenizer and, where the workload has one, chat template."""
        if isinstance(content, Chat) or workload.chat_template:
            chat = {"messages": messages_of(content), "chat_template_kwargs": dict(workload.chat_template_kwargs)}
            content = server.ask("/apply-template", chat)["prompt"]
        asked = {"content": content, "add_special": True, "parse_special": True}
        return list(server.ask("/tokenize", asked)["tokens"])
