"""Log-likelihoods by plain transformers, one token after the other; run by the runner's interpreter.

`python likelihoods.py FOLDER CONTEXTS CONTINUATIONS` prints as JSON a list of [context, continuation, log-likelihood,
whether it is greedy, tokens]: each continuation after each context, and what greedy decoding says first.
"""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, contexts, continuations = sys.argv[1], *map(json.loads, sys.argv[2:])
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def chances(ids: list[int]) -> torch.Tensor:
    """Return the logarithms of what comes next."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1)


rows = []
for context in contexts:
    before = tokenizer(context.rstrip()).input_ids
    likeliest = tokenizer.decode([int(chances(before).argmax())])
    for continuation in filter(None, (*continuations, likeliest)):
        whole = tokenizer(context + continuation).input_ids
        total, is_greedy = 0.0, True
        for at in range(len(before), len(whole)):
            after = chances(whole[:at])
            total += float(after[whole[at]])
            is_greedy &= int(after.argmax()) == whole[at]
        rows.append([context, continuation, total, is_greedy, len(whole) - len(before)])
sys.stdout.write(json.dumps(rows))
