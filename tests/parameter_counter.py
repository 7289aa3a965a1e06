"""Run by a runner's interpreter: parameters of each config.json on standard input, as transformers itself counts them.

Meta device: nothing is allocated. Reads and prints one JSON object, by name.
"""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def parameters(config: dict[str, object]) -> int:
    """Return how many there are, each tied one once."""
    kind = str(config.pop("model_type"))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))
    model.tie_weights()
    return sum(int(parameter.numel()) for parameter in model.parameters())


if __name__ == "__main__":
    print(json.dumps({name: parameters(config) for name, config in json.load(sys.stdin).items()}))
