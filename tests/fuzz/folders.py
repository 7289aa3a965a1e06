"""Model folders that are fuzzed, and everything that reads their settings, weights and tokenizers without an engine.

The runners' part reads with the transformers of the PyTorch environment, as every runner does.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from fuzz.commands import REFUSALS, chosen, command
from make.architectures import FORMS
from safetensors.numpy import save
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from wattdock_proto.context import model_context
from wattdock_runner import checkpoint
from wattdock_runner.errors import InvalidRequest
from wattdock_runner.recorder import PassRecorder
from wattdock_runner.values import Arrival, Chat, LoadOrder, Prompt, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fuzz.mutators import Files

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}
# Settings that stand beside those of an architecture, in the forms that public models have.
BESIDE: tuple[dict[str, Any], ...] = (
    {"torch_dtype": "bfloat16", "eos_token_id": [2, 3], "pad_token_id": 0, "max_position_embeddings": 4096},
    {"dtype": "float16", "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}},
    {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4, **LLAMA3}, "bos_token_id": 1},
    {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}},
    {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 8}, "torch_dtype": "float16"},
    {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {}}}}},
    {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}},
)
GENERATION = {"eos_token_id": [2, 3], "pad_token_id": 0, "temperature": 0.6, "do_sample": True}


def as_json(plain: object) -> bytes:
    """Return a document as compact JSON."""
    return json.dumps(plain).encode()


def tensors(**shapes: tuple[int, ...]) -> bytes:
    """Return a safetensors file of zeros."""
    data: bytes = save({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, {"format": "pt"})
    return data


def config_seeds(folder: Path) -> list[Files]:
    """Folders of every form of decoder, and one within a multimodal model's config."""
    forms = [form for name, form in FORMS.items() if form["model_type"] != "phi3"]
    configs = [{**form, **BESIDE[i % len(BESIDE)]} for i, form in enumerate(forms)]
    configs.append({"model_type": "gemma3", "text_config": configs[0], "vision_config": {"hidden_size": 8}})
    beside = {"m/generation_config.json": as_json(GENERATION), "m/model.safetensors": tensors(w=(2, 2))}
    return [{"m/config.json": as_json(config), **beside} for config in configs]


def run_config(folder: Path) -> None:
    """Read a folder's settings by the commands, and by the runners' readers where a plan has not refused it."""
    plan = ("plan", "--model", "./m", "--prompts", "synthetic", "--backend", chosen(folder, ["pytorch", "vllm"]))
    said = command(folder, *plan)
    command(folder, "estimate", "./m", "--gpu-model", "H100-80GB", "--batch-size", "2", "--context", "64")
    if said in REFUSALS:
        return
    with refusing():
        order, config = _config(folder)
        checkpoint.dtype_of(order, config)
        checkpoint.require_known_quantisation(order, config, checkpoint.LEGACY_CONFIGS)
        checkpoint.special_ids(order, config, None)
        model_context(config.get_text_config().to_dict())


def weight_seeds(folder: Path) -> list[Files]:
    """A folder with whole weights, with shards and their index, and with whole weights that an index names."""
    settings = {"m/config.json": as_json(FORMS["dense"])}
    names = {"w": "model-1.safetensors", "v": "model-1.safetensors", "u": "model-2.safetensors"}
    index = {"metadata": {"total_size": 24}, "weight_map": names}
    shards = {"m/model-1.safetensors": tensors(w=(2, 2), v=(3,)), "m/model-2.safetensors": tensors(u=(5,))}
    whole = {"m/model.safetensors": tensors(w=(2, 2), v=(3,), u=(5,), empty=(0, 4))}
    indexed = {"m/model.safetensors.index.json": as_json(index), **shards}
    own = {"m/model.safetensors.index.json": as_json({"metadata": {}, "weight_map": {"w": "model.safetensors"}})}
    return [{**settings, **whole}, {**settings, **indexed}, {**settings, **whole, **own}]


def run_weights(folder: Path) -> None:
    """Read which weights a folder has, and how large they are."""
    command(folder, "estimate", "./m", "--gpu-model", "H100-80GB", "--batch-size", "2", "--context", "64")
    backends = ("pytorch", "vllm", "tensorrt", "sglang")
    command(folder, "plan", "--model", "./m", "--prompts", "synthetic", "--backend", chosen(folder, backends))
    with refusing():
        checkpoint.weight_files(folder / "m")


TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PARTS = "{% for m in messages %}{{ m.role }}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
# Beside the tokenizer itself, what else says which ids and texts are special.
TOKENIZER_FILES = [
    *["m/tokenizer_config.json"] * 4,
    *["m/tokenizer.json", "m/generation_config.json"] * 2,
    *("m/special_tokens_map.json", "m/added_tokens.json", "m/chat_template.jinja"),
]
SPECIAL = ("<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>")


def _tokenizer(kind: str) -> bytes:
    letters = [chr(code) for code in range(32, 127)]
    if kind == "bpe":
        vocab = {token: i for i, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the"])}
        tokenizer = Tokenizer(models.BPE(vocab, [("t", "h"), ("th", "e")]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    elif kind == "unigram":
        pieces = [
            ("<unk>", 0.0),
            *((f"▁{letter}", -3.0) for letter in letters),
            *((letter, -2.0) for letter in letters),
        ]
        tokenizer = Tokenizer(models.Unigram(pieces, 0))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    else:
        tokenizer = Tokenizer(
            models.WordPiece({"[UNK]": 0, **{c: i + 1 for i, c in enumerate(letters)}}, unk_token="[UNK]")
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer.to_str().encode()


def tokenizer_seeds(folder: Path) -> list[Files]:
    """Folders whose template stands in each of the places for one, with all files that say of special tokens."""
    named = dict(zip(("unk_token", "bos_token", "eos_token"), SPECIAL, strict=False))
    settings = {**named, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, "add_bos_token": True}
    decoder = {"100": {"content": "<pad>", "lstrip": False, "normalized": False, "rstrip": False, "special": True}}
    beside = {"m/special_tokens_map.json": as_json(named), "m/added_tokens.json": as_json({"<extra>": 260})}
    beside |= {"m/config.json": as_json({**FORMS["dense"], "vocab_size": 512, **BESIDE[0]})}
    beside |= {"m/generation_config.json": as_json(GENERATION), "m/model.safetensors": tensors(w=(2, 2))}
    several = [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": PARTS}]
    forms: list[tuple[str, dict[str, Any], Files]] = [
        ("bpe", {"chat_template": TEMPLATE, "added_tokens_decoder": decoder}, {}),
        ("bpe", {"chat_template": several}, {}),
        ("unigram", {"tokenizer_class": "LlamaTokenizerFast"}, {"m/chat_template.jinja": TEMPLATE.encode()}),
        ("wordpiece", {"unk_token": "[UNK]", "chat_template": PARTS}, {}),
        (
            "bpe",
            {"pad_token": {"__type": "AddedToken", "content": "<pad>"}},
            {"m/chat_template.jinja": PARTS.encode(), "m/additional_chat_templates/rag.jinja": TEMPLATE.encode()},
        ),
    ]
    return [
        {"m/tokenizer.json": _tokenizer(kind), "m/tokenizer_config.json": as_json(settings | more), **beside, **files}
        for kind, more, files in forms
    ]


def run_tokenizer(folder: Path) -> None:
    """Read a folder's tokenizer by a command, then as runners do: its special ids, a text and a chat rendered."""
    command(folder, "plan", "--model", "./m", "--backend", "pytorch")
    chats = Chat((("user", "the"), ("assistant", "a"), ("user", "b"))), "the joule"
    with refusing():
        order, config = _config(folder)
        from transformers import AutoTokenizer

        tokenizer = checkpoint.read_tokenizer(AutoTokenizer, order)
        checkpoint.special_ids(order, config, tokenizer)
        for content in chats:
            workload = Workload(Arrival.BATCH, 1, 4, chat_template=True, template_time_s=0)
            checkpoint.encode_prompts(tokenizer, workload, [Prompt(content)], PassRecorder())
        checkpoint.encode_prompts(tokenizer, Workload(Arrival.BATCH, 1, 4), [Prompt("the")], PassRecorder())


@contextmanager
def refusing() -> Iterator[None]:
    """Note what a runner's reader refuses, as a command's refusals are noted."""
    try:
        yield
    except InvalidRequest as error:
        REFUSALS.append(str(error))


def _config(folder: Path) -> tuple[LoadOrder, Any]:
    from transformers import AutoConfig

    order = LoadOrder(folder / "m")
    return order, checkpoint.read_config(AutoConfig, order)
