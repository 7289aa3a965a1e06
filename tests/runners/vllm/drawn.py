"""Print facts about values that the vLLM runner draws; runs in the backend's environment, not in pytest's."""

from __future__ import annotations

import json
import sys

import torch
from wattdock_vllm_worker import draw


def drawn(name: str) -> torch.Tensor:
    """Return a bfloat16 tensor drawn from U[-0.02, 0.04) under this name."""
    values = torch.empty(300, 200, dtype=torch.bfloat16)
    draw(values, name, low=-0.02, high=0.04, seed=1)
    return values


first, integers = drawn("layers.0.weight"), torch.tensor([3, 4])
draw(integers, "packed", low=-0.02, high=0.04, seed=1)
wide = first.float()
facts = {
    "low": wide.min().item(),
    "high": wide.max().item(),
    "mean": wide.mean().item(),
    "std": wide.std().item(),
    "distinct": wide.unique().numel(),
    "same_name_is_equal": torch.equal(first, drawn("layers.0.weight")),
    "other_name_is_equal": torch.equal(first, drawn("layers.1.weight")),
    "integers": integers.tolist(),
}
sys.stdout.write(json.dumps(facts))
