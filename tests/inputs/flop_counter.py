"""What torch counts for small models; run by the PyTorch runner's interpreter, prints JSON.

python flop_counter.py CASES   CASES: a JSON list of {"config": config.json, "prompt_tokens": n, "output_tokens": n}
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

# Their code asks a tensor for its value, which one on the meta device has not.
ASK_FOR_VALUES = ("gpt2",)


def pluralize(case: dict[str, Any]) -> int:
    """Return the operations of a prefill and the decode steps after it, with a cache."""
    # sdpa is not counted on a CPU, and eager experts look at the data, which a meta tensor has not.
    config = AutoConfig.for_model(**case["config"], experts_implementation="batched_mm")
    config._attn_implementation = "eager"
    device = "cpu" if config.model_type in ASK_FOR_VALUES else "meta"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    cache = None
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        for tokens in (case["prompt_tokens"], *[1] * (case["output_tokens"] - 1)):
            ids = torch.zeros((1, tokens), dtype=torch.long, device=device)
            cache = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).past_key_values
    total: int = counter.get_total_flops()
    return total


if __name__ == "__main__":
    print(json.dumps([pluralize(case) for case in json.loads(sys.argv[1])]))
