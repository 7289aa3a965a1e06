"""Write a drawn checkpoint, read it back with transformers, and print what came of it; runs where torch is."""

import json
import sys
from pathlib import Path

import torch
import wattdock_tensorrt_weights
from transformers import AutoConfig, AutoModelForCausalLM

from wattdock_runner.backend import RandomWeights

source, target = Path(sys.argv[1]), Path(sys.argv[2])
wattdock_tensorrt_weights.SHARD_BYTES = 100_000
weights = RandomWeights(-0.02, 0.04, 7)
empty = wattdock_tensorrt_weights.meta_model(AutoConfig.from_pretrained(source), trust_remote_code=False)
wattdock_tensorrt_weights.write_checkpoint(empty, source, target, "bfloat16", weights)
model, info = AutoModelForCausalLM.from_pretrained(target, output_loading_info=True, dtype="auto")
values = torch.cat([parameter.detach().flatten().float() for parameter in model.parameters()])
facts = {
    "missing": sorted(info["missing_keys"]),
    "unexpected": sorted(info["unexpected_keys"]),
    "dtype": str(model.dtype),
    "parameters": len(values),
    "expected_parameters": sum(parameter.numel() for parameter in empty.parameters()),
    "shards": len(list(target.glob("*.safetensors"))),
    "low": float(values.min()),
    "high": float(values.max()),
    "mean": float(values.mean()),
    "std": float(values.std()),
    "tied": model.lm_head.weight is model.model.embed_tokens.weight,
}
sys.stdout.write(json.dumps(facts))
