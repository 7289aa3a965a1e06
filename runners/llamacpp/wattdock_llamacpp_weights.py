"""GGUF files: find one in a model folder, say what it holds, or write one from random weights or safetensors."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from wattdock_proto.gguf_reader import TensorReader
from wattdock_proto.weight_names import gguf_names, names_in
from wattdock_runner.checkpoint import seed_of, weight_files
from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from wattdock_runner.values import LoadOrder

# How many ids that end an answer a GGUF file has fields for: eos, eot, eom.
MOST_ENDS = 3
TYPES = {
    "float32": gguf.GGMLQuantizationType.F32,
    "float16": gguf.GGMLQuantizationType.F16,
    "bfloat16": gguf.GGMLQuantizationType.BF16,
}
# Types of safetensors, which have GGUF's names.
STORED = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Weights:
    """What a GGUF file holds.

    Attributes:
        kind: The type of most of its bytes: a dtype, or GGUF's name of a quantised one ("Q4_1").
        bytes: Size of all tensors as they lie in the file.
    """

    kind: str
    parameters: int
    bytes: int

    @property
    def is_quantized(self) -> bool:
        """Whether most of it is of no dtype."""
        return self.kind not in TYPES


def dtype_named(kind: str) -> str:
    """Return GGUF's name of a type as a dtype's, or as it is."""
    return next((dtype for dtype, gguf_type in TYPES.items() if gguf_type.name == kind.upper()), kind)


@contextmanager
def gguf_file(order: LoadOrder, config: Any, ends: Sequence[int]) -> Iterator[Path]:
    """Yield the model folder's GGUF file, or one that stays until a server has opened it: nobody else needs it.

    Of a model in parts it is the first.

    Raises:
        InvalidRequest: The folder holds several models and none was chosen, parts are missing, or as `write_gguf`.
    """
    try:
        names = [] if order.random_weights else gguf_names(names_in(order.model_path), order.gguf)
    except ValueError as error:
        raise InvalidRequest(f"{order.model_path}: {error}") from error
    if names:
        yield order.model_path / names[0]
        return
    file = Path.cwd() / "model.gguf"
    try:
        write_gguf(order, config, ends, file)
        yield file
    finally:
        file.unlink(missing_ok=True)


def weights_of(file: Path) -> Weights:
    """Return what a file holds; of a model in parts, what all hold.

    Raises:
        InvalidRequest: It is no GGUF file, or one without tensors.
    """
    try:
        parts = gguf_names(names_in(file.parent), file.name)
        tensors = [tensor for part in parts for tensor in TensorReader(file.with_name(part)).tensors]
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise InvalidRequest(f"cannot read {file.name}: {error!r}") from error
    if not tensors:
        raise InvalidRequest(f"{file.name} holds no tensors; give a whole model")
    by_kind: dict[str, int] = {}
    for tensor in tensors:
        by_kind[tensor.tensor_type.name] = by_kind.get(tensor.tensor_type.name, 0) + int(tensor.n_bytes)
    kind = max(by_kind, key=by_kind.__getitem__)
    return Weights(dtype_named(kind), sum(int(tensor.n_elements) for tensor in tensors), sum(by_kind.values()))


def require_writable(config: Any, ends: Sequence[int]) -> None:
    """Accept only a model that `write_gguf` can write.

    Raises:
        InvalidRequest: The model is no plain llama, or more ids end its answers than GGUF can say.
    """
    if config.model_type != "llama":
        raise InvalidRequest(
            f"model_type {config.model_type!r} cannot be written as GGUF; give a folder with a .gguf file"
        )
    others = [name for name in ("attention_bias", "mlp_bias", "quantization_config") if getattr(config, name, None)]
    if config.rope_parameters.get("rope_type", "default") != "default":
        others.append("rope_type")
    if others:
        raise InvalidRequest(f"{others[0]} of this model cannot be written as GGUF; give a folder with a .gguf file")
    if len(ends) > MOST_ENDS:
        raise InvalidRequest(f"{len(ends)} ids end an answer of this model, and GGUF has places for {MOST_ENDS}")


def write_gguf(order: LoadOrder, config: Any, ends: Sequence[int], file: Path) -> None:
    """Write a llama model's random or real weights, with a vocabulary of numbers: the server is sent ids only.

    Raises:
        InvalidRequest: As `require_writable`, or the folder's weights are no safetensors.
    """
    require_writable(config, ends)
    kind = TYPES["float32" if order.dtype == "auto" else order.dtype]
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"<{number}>" for number in range(config.vocab_size)])
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * config.vocab_size)
    writer.add_token_merges(["< >"])
    # Places for ids that end an answer.
    for add, end in zip(
        (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id), ends, strict=False
    ):
        add(end)
    for name, tensor in _tensors(order, config):
        values = tensor
        rotary_heads = {"attn_q": heads, "attn_k": kv_heads}.get(name.split(".")[-2])
        if rotary_heads:
            # GGUF interleaves the halves of each head's rotary dimensions.
            halves = values.reshape(rotary_heads, 2, -1, values.shape[1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        # Norms stay in 32 bits, as in every GGUF file.
        as_type = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else kind
        writer.add_tensor(name, gguf.quants.quantize(values, as_type), raw_dtype=as_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(order: LoadOrder, config: Any) -> Iterator[tuple[str, NDArray[np.float32]]]:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    if weights := order.random_weights:
        for name, shape in _shapes(config):
            drawn = np.random.default_rng(seed_of(name, weights)).random(shape, np.float32)
            yield str(names.get_name(name, (".weight",))), weights.low + (weights.high - weights.low) * drawn
        return
    from safetensors import deserialize

    if not (files := sorted(weight_files(order.model_path))):
        raise InvalidRequest(f"cannot load {order.model_path}: it has neither a .gguf file nor safetensors")
    for file in files:
        for name, stored in deserialize(file.read_bytes()):  # type: ignore[no-untyped-call]
            if (kind := stored["dtype"]) not in STORED:
                raise InvalidRequest(
                    f"{file.name}: {kind} of {name} cannot be written as GGUF; valid: {', '.join(STORED)}"
                )
            octets = np.frombuffer(stored["data"], np.uint8).reshape(*stored["shape"][:-1], -1)
            values = gguf.quants.dequantize(octets, gguf.GGMLQuantizationType[kind]).reshape(stored["shape"])
            yield str(names.get_name(name, (".weight",))), values.astype(np.float32)


def _shapes(config: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    head_size = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    queries, keys = config.num_attention_heads * head_size, config.num_key_value_heads * head_size
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(config.num_hidden_layers):
        inside = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        yield from ((f"model.layers.{layer}.{name}.weight", shape) for name, shape in inside.items())
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (vocab, hidden)
