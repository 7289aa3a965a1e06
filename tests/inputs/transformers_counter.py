"""Run by a runner's interpreter: what transformers and torch themselves make of each config.json on standard input.

Parameters, keys and values kept after a prefill, the peak of what else was alive in it, and operations of whole
requests. Meta device, but for operations of small models: nothing is allocated. Reads {name: [config, [[prompt tokens,
output tokens], ...]]} and prints one JSON object by name.
"""

from __future__ import annotations

import json
import sys
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

REQUESTS, PROMPT_TOKENS = 2, 300
# Its code asks a tensor for its value, which one on the meta device has not.
NOT_RUN = ("gpt2",)


class Live(TorchDispatchMode):  # type: ignore[misc]
    """Follows the bytes of every tensor that is made and not yet gone; `peak` is the most at a time."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._known, self._sizes = known, dict[int, int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in tree_flatten(made)[0]:
            if isinstance(value, torch.Tensor):
                self._follow(value.untyped_storage())
        return made

    def _follow(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._known or key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        self._now += storage.nbytes()
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self._now -= self._sizes.pop(key, 0)


def all_of(config: dict[str, object], lengths: list[tuple[int, int]]) -> dict[str, object]:
    """Return parameters (each tied one once), bytes of keys and values and of activations, and operations; 16-bit."""
    # The default implementation of experts looks at the data, which a meta tensor has not.
    kind = AutoConfig.for_model(**config, experts_implementation="batched_mm")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(kind, dtype=torch.bfloat16).eval()
    model.tie_weights()
    parameters = sum(int(parameter.numel()) for parameter in model.parameters())
    kept, alive = (None, None) if kind.model_type in NOT_RUN else prefilled(model)
    flops = [operations(kind, *length) for length in lengths]
    return {"parameters": parameters, "kv_bytes": kept, "activation_bytes": alive, "flops": flops}


def operations(kind: Any, prompt_tokens: int, output_tokens: int) -> int:
    """Return the operations of a prefill and the decode steps after it, with a cache, as torch counts them."""
    # sdpa is not counted on a CPU.
    kind._attn_implementation = "eager"
    # A small model is computed sooner than its shapes are worked out.
    device = "cpu" if kind.hidden_size < 1000 else "meta"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(kind, dtype=torch.bfloat16).eval()
    cache = None
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        for tokens in (prompt_tokens, *[1] * (output_tokens - 1)):
            ids = torch.zeros((1, tokens), dtype=torch.long, device=device)
            cache = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).past_key_values
    total: int = counter.get_total_flops()
    return total


def kept_by(layer: Any) -> list[Any]:
    """Return what a layer of a cache holds: keys and values, or the states of linear attention."""
    if hasattr(layer, "keys"):
        return [layer.keys, layer.values]
    states = [layer.conv_states, layer.recurrent_states]
    return [state for kind in states for state in (kind.values() if isinstance(kind, dict) else kind)]


def prefilled(model: Any) -> tuple[int, int]:
    """Return bytes of keys and values after a prefill, and the most bytes of anything else in it."""
    known = {value.untyped_storage()._cdata for value in (*model.parameters(), *model.buffers())}
    ids = torch.zeros((REQUESTS, PROMPT_TOKENS), dtype=torch.long, device="meta")
    places = torch.arange(PROMPT_TOKENS, device="meta")[None]
    with torch.inference_mode(), Live(known) as live:
        cache = model(input_ids=ids, position_ids=places, use_cache=True, logits_to_keep=1).past_key_values
    kept = sum(int(part.nbytes) for layer in cache.layers for part in kept_by(layer))
    return kept, live.peak - kept


if __name__ == "__main__":
    print(json.dumps({name: all_of(*case) for name, case in json.load(sys.stdin).items()}))
