"""A sweep over thinking: a template with Qwen3's switch, and a real engine whose model thinks unless told not to."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from contract.runner_process import PYTORCH_PYTHON
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

# Renders one turn as the template of Qwen/Qwen3-0.6B (tokenizer_config.json) does: without thinking the prompt itself
# holds thoughts that are empty.
TEMPLATE = (
    "{% for turn in messages %}<|im_start|>{{ turn.role }}\n{{ turn.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "\n\n")
# What the model says after each token; after "\n" of the prompt it begins to think.
SAYS = {"\u010a": "<think>", "<think>": "a", "a": "</think>", "</think>": "7", "\n\n": "7", "7": "<|im_end|>"}
STUDY: dict[str, Any] = {
    "name": "thinking",
    "defaults": {
        "backend": "pytorch",
        "model": "./chain",
        "pytorch": {"dtype": "float32"},
        "warmup": {"passes": 0},
        "idle": {"duration_s": 0},
        "repeats": {"passes": 1, "restarts": 1},
        "workload": {"batch_size": 4, "max_output_tokens": 2, "prompts": {"chat": True}},
        "quality": {"tasks": ["arithmetic"], "limit": 6, "max_output_tokens": 16},
    },
    "sweep": {"workload.prompts.chat_template_kwargs": [{"enable_thinking": True}, {"enable_thinking": False}]},
}


def write_chain(folder: Path) -> None:
    """Write a Llama whose layer adds nothing, so that its next token depends on the last one alone."""
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(mark, special=mark.startswith("<|"), normalized=False) for mark in MARKS])
    tokenizer.save(str(folder / "tokenizer.json"))
    size, width = tokenizer.get_vocab_size(), 264
    tensors: dict[str, Any] = {
        "model.embed_tokens.weight": np.eye(size, width),
        "lm_head.weight": np.zeros((size, width)),
    }
    for last, said in SAYS.items():
        tensors["lm_head.weight"][tokenizer.token_to_id(said), tokenizer.token_to_id(last)] = 1
    layer = "model.layers.0."
    tensors |= {f"{layer}self_attn.{name}_proj.weight": np.zeros((width, width)) for name in "qkvo"}
    tensors |= {f"{layer}mlp.{name}_proj.weight": np.zeros((width, width)) for name in ("gate", "up", "down")}
    norms = (f"{layer}input_layernorm", f"{layer}post_attention_layernorm", "model.norm")
    tensors |= dict.fromkeys((f"{name}.weight" for name in norms), np.ones(width))
    save_file(
        {name: np.ascontiguousarray(tensor, dtype=np.float32) for name, tensor in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    end = tokenizer.token_to_id("<|im_end|>")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": size, "hidden_size": width}
    config |= {"intermediate_size": width, "num_hidden_layers": 1, "num_attention_heads": 4, "eos_token_id": end}
    config |= {"tie_word_embeddings": False, "max_position_embeddings": 1024, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


@pytest.mark.skipif(not PYTORCH_PYTHON.exists(), reason=f"no PyTorch environment at {PYTORCH_PYTHON}")
def test_thoughts_and_answers_part_in_a_sweep_over_thinking(tmp_path: Path) -> None:
    """Three tokens of thought, the answer and its end; without thinking the same answer in two tokens."""
    write_chain(tmp_path / "chain")
    (tmp_path / "x.yaml").write_text(json.dumps(STUDY))
    words = [sys.executable, "-m", "wattdock", "run", "x.yaml", "--runner-python", str(PYTORCH_PYTHON)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = [json.loads(file.read_text()) for file in tmp_path.glob("results/*/result.json")]
    tasks = {
        each["config"]["workload"]["prompts"]["chat_template_kwargs"]["enable_thinking"]: each["quality"]["tasks"][0]
        for each in results
    }
    counts = {value: (task["thought_tokens"], task["output_tokens"]) for value, task in tasks.items()}
    assert counts == {True: (3 * 6, 5 * 6), False: (0, 2 * 6)}
    assert tasks[True]["scores"] == tasks[False]["scores"]
    assert tasks[True]["rendered_sha256"] != tasks[False]["rendered_sha256"]
