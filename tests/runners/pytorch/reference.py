"""Answers of plain transformers to compare with; run by the runner's interpreter.

`python reference.py FOLDER PROMPTS` saves a small random Llama, and prints as JSON: an un-batched greedy continuation
per prompt (JSON lists of ids), what drawing random weights does, what splits are refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

NEW_TOKENS = 40


def make(folder: Path) -> None:
    """Save weights for the config in `folder`, spread widely enough for varied continuations."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()


def greedy(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Return NEW_TOKENS ids per prompt, by the argmax of full forward passes without cache or padding."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    continuations = []
    with torch.inference_mode():
        for prompt in prompts:
            ids = torch.tensor([prompt])
            for _ in range(NEW_TOKENS):
                ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
            continuations.append(ids[0, len(prompt) :].tolist())
    return continuations


def weights(folder: Path) -> dict[str, Any]:
    """Return facts about models drawn with seeds 1, 1 and 2, beside one that transformers made itself."""
    from wattdock_pytorch_model import draw_model, empty_model

    from wattdock_runner.values import RandomWeights

    config = AutoConfig.from_pretrained(folder)

    def draw(seed: int) -> Any:
        model = empty_model(config, dtype=torch.bfloat16)
        return draw_model(model, {"": "cpu"}, RandomWeights(-0.02, 0.04, seed))

    first, again, other = draw(1), draw(1), draw(2)
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    values = torch.cat([parameter.detach().float().flatten() for parameter in first.parameters()])
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    return {
        "low": values.min().item(),
        "high": values.max().item(),
        "mean": values.mean().item(),
        "std": values.std().item(),
        "distinct": values.unique().numel(),
        "dtypes": sorted({str(parameter.dtype) for parameter in first.parameters()}),
        "same_seed_is_equal": all(torch.equal(a, b) for a, b, _ in pairs),
        "other_seed_shares_a_tensor": any(torch.equal(a, c) for a, _, c in pairs),
        "tied": first.lm_head.weight is first.model.embed_tokens.weight,
        "names_match": [n for n, _ in first.named_parameters()] == [n for n, _ in plain.named_parameters()],
        "buffers": len(list(plain.named_buffers())),
        "buffers_match": all(torch.equal(a, b) for a, b in zip(first.buffers(), plain.buffers(), strict=True)),
        "queries_differ_between_layers": not torch.equal(
            first.model.layers[0].self_attn.q_proj.weight, first.model.layers[1].self_attn.q_proj.weight
        ),
    }


def split_refusal(folder: Path, ranks: int) -> str | None:
    """Return why a model cannot be split over so many ranks; None where it can."""
    from wattdock_pytorch_ranks import require_splittable

    from wattdock_runner.errors import InvalidRequest

    try:
        require_splittable(AutoConfig.from_pretrained(folder), ranks)
    except InvalidRequest as refusal:
        return str(refusal)
    return None


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    make(folder)
    answers = {
        "continuations": greedy(folder, json.loads(sys.argv[2])),
        "weights": weights(folder),
        "splits": [split_refusal(folder, ranks) for ranks in (2, 3)],
    }
    sys.stdout.write(json.dumps(answers))
