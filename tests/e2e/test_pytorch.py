"""`wattdock run` with its default backend from outside: text through a tokenizer, a checkpoint and transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest
from contract.runner_process import PYTORCH_PYTHON
from contract.subjects import TINY_LLAMA, write_config, write_tokenizer
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from unprivileged import give_to_user

if TYPE_CHECKING:
    from pathlib import Path

    from command import Command

WIDTH, INNER, LAYERS, VOCABULARY, KEYS = (
    TINY_LLAMA[name]
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "num_key_value_heads")
)


def write_checkpoint(folder: Path) -> None:
    """Write a tiny model with float32 weights and a tokenizer."""
    write_config(folder, dtype="float32", max_position_embeddings=8192)
    write_tokenizer(folder)
    keys = KEYS * WIDTH // TINY_LLAMA["num_attention_heads"]
    attention = {"q": (WIDTH, WIDTH), "k": (keys, WIDTH), "v": (keys, WIDTH), "o": (WIDTH, WIDTH)}
    shapes = {"model.embed_tokens": (VOCABULARY, WIDTH), "model.norm": (WIDTH,)}
    for layer in (f"model.layers.{number}" for number in range(LAYERS)):
        shapes |= {f"{layer}.self_attn.{name}_proj": shape for name, shape in attention.items()}
        shapes |= {f"{layer}.mlp.{name}_proj": (INNER, WIDTH) for name in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj": (WIDTH, INNER)}
        shapes |= {f"{layer}.{name}_layernorm": (WIDTH,) for name in ("input", "post_attention")}
    draw = np.random.default_rng(1)
    weights = {f"{name}.weight": draw.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for path in (folder, *folder.iterdir()):
        give_to_user(path)


@pytest.mark.skipif(not PYTORCH_PYTHON.exists(), reason=f"no PyTorch environment at {PYTORCH_PYTHON}")
def test_text_comes_back_with_the_token_counts_that_the_tokenizer_gives(wattdock: Command) -> None:
    """Counts are ids, for prompts and for answers; text is their decoding."""
    write_checkpoint(wattdock.folder / "model")
    small = ("--model", "./model", "--passes", "1", "--batch-size", "3", "--max-output-tokens", "24")
    done = replace(wattdock, runner_python=PYTORCH_PYTHON)("run", *small)
    assert done.returncode == 0, done.stderr
    [result] = wattdock.results()
    [file] = (wattdock.folder / "results").glob("*-pytorch-*/restarts/0/requests.parquet")
    requests = pq.read_table(file).to_pylist()
    tokenizer = Tokenizer.from_file(str(wattdock.folder / "model/tokenizer.json"))
    assert len(requests) == 6
    for request in requests:
        ids = request["output_ids"]
        assert request["output_tokens"] == len(ids)
        assert request["text"] == tokenizer.decode(ids, skip_special_tokens=True)
        assert (request["finish_reason"], len(ids)) == ("length", 24) or ids[-1] == TINY_LLAMA["eos_token_id"]
        assert request["submitted_ns"] < request["first_token_ns"] <= request["finished_ns"]
    performance = result["performance"]
    assert performance["output_tokens"] == sum(request["output_tokens"] for request in requests)
    assert performance["prompt_tokens"] == sum(request["prompt_tokens"] for request in requests)
    assert performance["output_tokens_per_s"] * performance["duration_s"] == pytest.approx(performance["output_tokens"])
    assert result["environment"]["model"]["weights"] == "real"


@pytest.mark.skipif(not PYTORCH_PYTHON.exists(), reason=f"no PyTorch environment at {PYTORCH_PYTHON}")
def test_a_template_that_cannot_be_used_is_one_line_with_what_to_do(wattdock: Command) -> None:
    """The row is stored with the line; without chat the same folder is measured."""
    write_checkpoint(wattdock.folder / "model")
    settings = wattdock.folder / "model/tokenizer_config.json"
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"chat_template": "{{ raise_exception('in turns') }}"})
    )
    small = ("--model", "./model", "--passes", "1", "--batch-size", "1", "--max-output-tokens", "2", "--quiet")
    by_pytorch = replace(wattdock, runner_python=PYTORCH_PYTHON)
    refused = by_pytorch("run", *small)
    assert refused.returncode == 2, refused.stderr
    assert "TemplateError: in turns; fix the template, or set workload" in refused.stderr
    assert wattdock.results()[-1]["error"]["exit_code"] == 2
    assert by_pytorch("run", *small, "--set", "workload.prompts.chat=false").returncode == 0
