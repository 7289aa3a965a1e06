"""A model folder small enough to write in a test."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gguf
import numpy as np
from safetensors.numpy import save

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {"model_type": "llama", "vocab_size": 32}


def weights(value: float = 1.0) -> bytes:
    """Return the bytes of a safetensors file with one tensor."""
    data: bytes = save({"w": np.full((4, 4), value, dtype=np.float16)})
    return data


def with_header(header: object) -> bytes:
    """Return a safetensors file that is this header alone."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def files() -> dict[str, bytes]:
    """Return a whole model: path to content."""
    return {
        "config.json": json.dumps(CONFIG).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": weights(),
    }


def write(folder: Path, content: dict[str, bytes] | None = None) -> Path:
    """Write a model folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (content or files()).items():
        (folder / name).write_bytes(data)
    return folder


def gguf_file(file: Path, template: str = "{{ x }}") -> Path:
    """Write a llama of one layer as a GGUF file that can be converted, and return the file."""
    size, width, tokens = 8, 16, ["a", "b", "ab", "<s>"]
    writer = gguf.GGUFWriter(file, "llama")
    for name, number in (
        *(("embedding_length", size), ("feed_forward_length", width), ("block_count", 1), ("vocab_size", len(tokens))),
        *(("attention.head_count", 2), ("attention.head_count_kv", 2), ("rope.dimension_count", 4)),
        ("context_length", 64),
    ):
        writer.add_uint32(f"llama.{name}", number)
    writer.add_float32("llama.rope.freq_base", 1e4)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([1, 1, 1, 3])
    writer.add_token_merges(["a b"])
    for name in ("bos", "eos", "unknown", "padding"):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", 3)
    writer.add_string("tokenizer.chat_template", template)
    square, wide = np.ones((size, size), np.float32), np.ones((width, size), np.float16)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add_tensor(f"blk.0.{name}.weight", square)
    for name, tensor in (("ffn_gate", wide), ("ffn_up", wide), ("ffn_down", wide.T.copy())):
        writer.add_tensor(f"blk.0.{name}.weight", tensor)
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", np.ones((len(tokens), size), np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
