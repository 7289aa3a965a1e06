"""Convert a llama GGUF file with a byte-level BPE tokenizer into a Hugging Face folder.

Pure numpy; knows neither where the file came from nor who will load the folder.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from wattdock.errors import PreflightError
from wattdock_proto.gguf_reader import BoundedReader

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

# Of a GGUF tensor name; layers are "blk.<n>.<key>.weight" there.
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
OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
SUPPORTED = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}


def convert_gguf(source: Path, folder: Path) -> None:
    """Write `folder` (which exists) as a float16 Hugging Face model with tokenizer and chat template.

    Raises:
        PreflightError: The file is damaged, or of another architecture or tokenizer than this converter knows.
    """
    try:
        _convert(BoundedReader(source), source, folder)
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise PreflightError(f"{source.name} is not a whole GGUF file ({error!r})", "fetch it again") from error


def _convert(reader: BoundedReader, source: Path, folder: Path) -> None:
    meta = {name: field.contents() for name, field in reader.fields.items()}
    for key, value in SUPPORTED.items():
        if meta.get(key) != value:
            raise PreflightError(f"{source.name} has {key} = {meta.get(key)!r}", f"only {value!r} can be converted")
    heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    tensors = _tensors(reader.tensors, heads=heads, kv_heads=kv_heads)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(meta).save(str(folder / "tokenizer.json"), pretty=False)
    _write_json(folder / "config.json", model_config(meta, tied="lm_head.weight" not in tensors))
    _write_json(folder / "generation_config.json", _generation_config(meta))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(meta))


def unpermute(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Return a query or key projection in Hugging Face's row order; shape (heads · head size, inputs) both ways.

    GGUF llama files hold the two halves of each head's rotary dimensions interleaved (0, d/2, 1, d/2 + 1, …); Hugging
    Face wants the halves one after the other.
    """
    rows, inputs = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, inputs).swapaxes(1, 2).reshape(rows, inputs)


def hf_name(gguf_name: str) -> str:
    """Return the Hugging Face name of a llama GGUF tensor.

    Raises:
        PreflightError: The tensor belongs to no plain llama model.
    """
    stem = gguf_name.removesuffix(".weight")
    if stem in OUTER_NAMES:
        return f"{OUTER_NAMES[stem]}.weight"
    match stem.split("."):
        case ["blk", layer, key] if key in LAYER_NAMES:
            return f"model.layers.{layer}.{LAYER_NAMES[key]}.weight"
    raise PreflightError(f"tensor {gguf_name} has no place in a llama model", "this GGUF file cannot be converted")


def model_config(meta: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """Return config.json for GGUF metadata; `tied` when the embedding serves as output matrix too."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.rope.dimension_count"],
        "vocab_size": meta["llama.vocab_size"],
        "max_position_embeddings": meta["llama.context_length"],
        "rope_theta": _shortest(meta["llama.rope.freq_base"]),
        "rope_scaling": None,
        "rms_norm_eps": _shortest(meta["llama.attention.layer_norm_rms_epsilon"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float16",
        "use_cache": True,
    }


def _tensors(tensors: list[Any], *, heads: int, kv_heads: int) -> dict[str, NDArray[np.float16]]:
    """Every tensor, dequantised, in Hugging Face's names, order and float16."""
    converted = {}
    for tensor in tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name.endswith(".attn_q.weight"):
            values = unpermute(values, heads)
        elif tensor.name.endswith(".attn_k.weight"):
            values = unpermute(values, kv_heads)
        converted[hf_name(tensor.name)] = np.ascontiguousarray(values, dtype=np.float16)
    return converted


def _tokenizer(meta: dict[str, Any]) -> Tokenizer:
    """The tokenizer that the metadata describes.

    Source: llama.cpp, pre-tokenizer "smollm": every digit by itself, then GPT-2's pattern. (The GGUF reader of
    transformers leaves the digits out, which changes the ids of blanks before a digit.)
    """
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    try:
        model = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    # The library raises nothing more specific.
    except Exception as error:
        raise ValueError(str(error)) from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [
        token
        for token, kind in zip(tokens, meta["tokenizer.ggml.token_type"], strict=True)
        if kind == gguf.TokenType.CONTROL
    ]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def _tokenizer_config(meta: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json; its class keeps tokenizer.json as it stands, where a GPT-2 class would rebuild it."""
    tokens = meta["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": meta["tokenizer.chat_template"],
    }


def _generation_config(meta: dict[str, Any]) -> dict[str, Any]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {name: meta[f"tokenizer.ggml.{key}_token_id"] for name, key in keys.items()}


def _shortest(value: float) -> float:
    """A float32 from the file as the decimal that was meant: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
