"""Convert the embedded model's GGUF file, a llama with a byte-level BPE tokenizer, into a Hugging Face folder.

The file is the pinned one: `embedded` has checked it byte for byte. Knows neither where it came from nor who will load
the folder.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

# Hugging Face's names of tensors; layers are "blk.<n>.<key>.weight" in a GGUF file.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def convert_gguf(source: Path, folder: Path, config: Mapping[str, Any]) -> None:
    """Write `folder` (which exists) as a float16 Hugging Face model with tokenizer and chat template.

    Args:
        source: The embedded model's GGUF file.
        config: The config.json of the model, apart from ids of tokens and the type of the weights.
    """
    reader = gguf.GGUFReader(source)
    tensors = (_hf_tensor(tensor, config) for tensor in reader.tensors)
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    meta = {name.removeprefix("tokenizer."): field.contents() for name, field in reader.fields.items()}
    _tokenizer(meta).save(str(folder / "tokenizer.json"), pretty=False)
    gguf_names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {name: meta[f"ggml.{key}_token_id"] for name, key in gguf_names.items()}
    special_ids = {f"{name}_token_id": ids[name] for name in ("bos", "eos", "pad")}
    files = {
        "config.json": {**config, **special_ids, "torch_dtype": "float16"},
        "generation_config.json": special_ids,
        # Its class keeps tokenizer.json as it stands, where a GPT-2 class would rebuild it.
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{f"{name}_token": meta["ggml.tokens"][index] for name, index in ids.items()},
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": meta["chat_template"],
        },
    }
    for name, content in files.items():
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def _hf_tensor(tensor: Any, config: Mapping[str, Any]) -> tuple[str, NDArray[np.float16]]:
    """Return a tensor's name and dequantised values as Hugging Face has them.

    GGUF llama files hold the two halves of each head's rotary dimensions interleaved (0, d/2, 1, d/2 + 1, …) in query
    and key projections; Hugging Face wants the halves one after the other.
    """
    values = gguf.dequantize(tensor.data, tensor.tensor_type)
    *layer, kind = tensor.name.removesuffix(".weight").split(".")
    name = f"model.layers.{layer[1]}.{LAYER_NAMES[kind]}" if layer else OUTER_NAMES[kind]
    if kind in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if kind == "attn_q" else "num_key_value_heads"]
        rows, inputs = values.shape
        values = values.reshape(heads, rows // heads // 2, 2, inputs).swapaxes(1, 2).reshape(rows, inputs)
    return f"{name}.weight", np.ascontiguousarray(values, dtype=np.float16)


def _tokenizer(meta: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer that the metadata describes.

    Source: llama.cpp, pre-tokenizer "smollm": every digit by itself, then GPT-2's pattern. (The GGUF reader of
    transformers leaves the digits out, which changes the ids of blanks before a digit.)
    """
    tokens: list[str] = meta["ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, meta["ggml.token_type"], strict=True)
    control = [token for token, kind in kinds if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer
