"""Read a model folder, encode prompts and draw random weights in the same way for every backend.

Transformers, tokenizers and torch are duck-typed: nothing is imported.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from wattdock_proto.headers import MAX_HEADER_BYTES, indexed_names
from wattdock_proto.prompt_hash import hash_of, packed
from wattdock_proto.weight_names import INDEX, TOKENIZER_FILES, names_in, weight_names
from wattdock_runner.chat import ChatTemplate
from wattdock_runner.errors import InvalidRequest
from wattdock_runner.values import Chat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from wattdock_runner.recorder import PassRecorder
    from wattdock_runner.values import LoadOrder, Prompt, RandomWeights, Workload

# Settings of AutoGPTQ and AutoAWQ outside config.json, where transformers does not look for them.
LEGACY_CONFIGS = ("quantize_config.json", "quant_config.json")
# Generation settings of a checkpoint that apply or change no output; every other setting is ignored with a warning.
HARMLESS_GENERATION_SETTINGS = {
    "_from_model_config",
    "bos_token_id",
    "eos_token_id",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "transformers_version",
    "use_cache",
}


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt ready to run.

    Attributes:
        position: Its place among the prompts of the pass, from 0.
        hash: Hash of its ids; see `prompt_hash` in runner.proto.
    """

    position: int
    ids: list[int]
    max_output_tokens: int
    hash: int


def encode_prompts(
    tokenizer: Any, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder
) -> tuple[EncodedPrompt, ...]:
    """Return the token ids of each prompt, in order; a text is a user message where the workload has a chat template.

    Records what became of texts: a hash of their ids, and whether the template asked for the present.

    Raises:
        InvalidRequest: Text without a tokenizer, messages without a chat template, a template that leaves out text,
            or a prompt without a single token.
    """
    texts = any(isinstance(prompt.content, (str, Chat)) for prompt in prompts)
    if texts and tokenizer is None:
        raise InvalidRequest("this model folder has no tokenizer; send prompts as token ids")
    template = None
    if texts and workload.chat_template and tokenizer.chat_template:
        template = ChatTemplate(tokenizer, workload.chat_template_kwargs, workload.template_time_s)
    if workload.chat_template_kwargs and not template:
        raise InvalidRequest("no chat template wraps these prompts; leave out workload.prompts.chat_template_kwargs")
    encoded = encode_each(
        workload, prompts, recorder, lambda content, name: _encode(tokenizer, content, template, name)
    )
    recorder.template_asked_time = template is not None and template.asked_time
    return encoded


def encode_each(
    workload: Workload,
    prompts: Sequence[Prompt],
    recorder: PassRecorder,
    encode: Callable[[str | Chat, str], Sequence[int]],
) -> tuple[EncodedPrompt, ...]:
    """Return the token ids of each prompt, in order, and record a hash of the texts' ids.

    Args:
        encode: Returns the ids of a text or chat; its second argument names the prompt.

    Raises:
        InvalidRequest: A prompt without a single token.
    """
    encoded, rendered = [], hashlib.sha256()
    for position, prompt in enumerate(prompts):
        if isinstance(prompt.content, (str, Chat)):
            ids = list(encode(prompt.content, f"prompt {position}"))
            rendered.update(packed([len(ids)]) + packed(ids))
            recorder.rendered_sha256 = rendered.hexdigest()
        else:
            ids = list(prompt.content)
        limit = workload.max_output_tokens if prompt.max_output_tokens is None else prompt.max_output_tokens
        encoded.append(EncodedPrompt(position, ids, limit, hash_of(ids)))
    if empty := [prompt.position for prompt in encoded if not prompt.ids]:
        raise InvalidRequest(f"prompt {empty[0]} has no tokens")
    return tuple(encoded)


def first_requests(prompts: Sequence[EncodedPrompt], limits: Sequence[int]) -> tuple[EncodedPrompt, ...]:
    """Return the first requests of a pass, whose limits are not their prompts' own, each with a position of its own."""
    return tuple(
        replace(prompts[index % len(prompts)], position=len(prompts) + index, max_output_tokens=limit)
        for index, limit in enumerate(limits)
    )


def require_servable(prompts: Sequence[EncodedPrompt], vocab_size: int, context_tokens: int | None) -> None:
    """Accept only prompts whose ids are in the vocabulary and whose answers fit into the context.

    Args:
        context_tokens: Positions of the model; None is unlimited.

    Raises:
        InvalidRequest: Holds the prompt's position and both figures.
    """
    for prompt in prompts:
        tokens, limit = len(prompt.ids), prompt.max_output_tokens
        if (largest := max(prompt.ids)) >= vocab_size:
            raise InvalidRequest(f"prompt {prompt.position} holds id {largest}, and the model has {vocab_size}")
        if context_tokens is not None and tokens + limit > context_tokens:
            raise InvalidRequest(
                f"prompt {prompt.position} needs {tokens} + {limit} positions, and the model has {context_tokens}"
                " as it is loaded"
            )


def _encode(tokenizer: Any, content: str | Chat, template: ChatTemplate | None, name: str) -> list[int]:
    if template:
        text = template.render((("user", content),) if isinstance(content, str) else content.messages, name)
    elif isinstance(content, Chat):
        reason = "this tokenizer has none" if not tokenizer.chat_template else "workload.prompts.chat is false"
        raise InvalidRequest(f"{name} is a list of messages, which needs the model's chat template, and {reason}")
    else:
        text = content
    # A template writes its own special tokens; the tokenizer must not add a second set.
    ids = list(tokenizer(text, add_special_tokens=template is None).input_ids)
    unknown = ids.count(tokenizer.unk_token_id)
    if unknown > len(ids) / 2:
        raise InvalidRequest(f"the tokenizer does not know {unknown} of {len(ids)} tokens of {name}; give it its own")
    bos = tokenizer.bos_token_id
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids


def weight_files(path: Path) -> set[Path]:
    """Return the files that transformers reads weights from; empty where a folder has no safetensors of its names.

    Raises:
        InvalidRequest: The folder or its index of weights cannot be read.
    """

    def indexed() -> set[str]:
        with (path / INDEX).open("rb") as file:
            return indexed_names(file.read(MAX_HEADER_BYTES + 1))

    try:
        return {path / name for name in weight_names(names_in(path), indexed)}
    except OSError as error:
        raise InvalidRequest(f"cannot read {error.filename}: {error.strerror}; see that the runner may") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path / INDEX} is not a weight index ({error!r}); download the model again") from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Refuse a folder for whatever transformers raises: it checks little of what it reads."""
    try:
        yield
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidRequest(f"transformers cannot read {path}: {reason}; save the model again") from error


def read_from_folder(auto_class: Any, order: LoadOrder) -> Any:
    """Return what a class of transformers (AutoConfig, AutoTokenizer) reads from the model folder, offline.

    Raises:
        InvalidRequest: It cannot be read; the message holds transformers' reason.
    """
    with _reading(order.model_path):
        return auto_class.from_pretrained(
            order.model_path, local_files_only=True, trust_remote_code=order.trust_remote_code
        )


def read_tokenizer(auto_tokenizer: Any, order: LoadOrder) -> Any:
    """Return the folder's tokenizer, or None without one.

    Raises:
        InvalidRequest: As `read_from_folder`, or it encodes no text, or its special tokens are none of its tokens.

    Source: `_convert_token_to_id_with_added_voc` of transformers 5.24, which asks for an unknown token's id for ever
        where the unknown token itself has none.
    """
    if not any((order.model_path / name).is_file() for name in TOKENIZER_FILES):
        return None
    tokenizer = read_from_folder(auto_tokenizer, order)
    with _reading(order.model_path):
        _ = tokenizer("a"), [getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad", "unk")]
    return tokenizer


def read_config(auto_config: Any, order: LoadOrder) -> Any:
    """Return the folder's config; a pad id that is not in the vocabulary, which embeddings refuse, is left out.

    Raises:
        InvalidRequest: It names another model, whose folder nobody checked: vLLM would load that one, and take this
            folder for its draft model. Or it names a hub's attention kernel, which is code, and code is not trusted.

    Source: `maybe_override_with_speculators` of vLLM 0.32, `load_and_register_attn_kernel` of transformers 5.24.
    """
    config = read_from_folder(auto_config, order)
    if getattr(config, "speculators_config", None) is not None:
        raise InvalidRequest(f"{order.model_path} is a draft for another model (speculators_config in config.json)")
    text = config.get_text_config()
    kernels = [str(getattr(part, "_attn_implementation", None)) for part in (config, text)]
    if "/" in "".join(kernels) and not order.trust_remote_code:
        raise InvalidRequest(f"config.json of {order.model_path} names code of a hub ({kernels[0]}): trust_remote_code")
    if not known_ids(getattr(text, "pad_token_id", None), getattr(text, "vocab_size", 0)):
        text.pad_token_id = None
    return config


def require_known_quantisation(order: LoadOrder, config: Any, unread: Sequence[str]) -> Mapping[str, Any]:
    """Return the settings of a quantised checkpoint, empty for a plain one.

    Args:
        unread: Files of such settings that the engine does not read: packed weights would be taken for plain ones.

    Raises:
        InvalidRequest: The settings stand in another file than config.json.
    """
    settings: Mapping[str, Any] = getattr(config, "quantization_config", None) or {}
    settings = settings or getattr(config.get_text_config(), "quantization_config", None) or {}
    if not settings and (found := [name for name in unread if (order.model_path / name).is_file()]):
        raise InvalidRequest(
            f"{order.model_path} is quantised by {found[0]}, which this engine does not read; write its settings into "
            "config.json as quantization_config, with quant_method"
        )
    return settings


def dtype_of(order: LoadOrder, config: Any, *, on_gpu: bool = True) -> str | None:
    """Return the dtype that a model runs in: the order's, a CPU's float32, or the checkpoint's; None where none says.

    Args:
        config: The model's config, as transformers reads it.
    """
    if order.dtype != "auto":
        return order.dtype
    if not on_gpu:
        return "float32"
    text = config.get_text_config()
    # Older versions of transformers have the last name.
    dtype = getattr(text, "dtype", None) or getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    return None if dtype is None else str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class SpecialIds:
    """Ids of a checkpoint that every engine uses alike; the vocabulary has each of them.

    Attributes:
        eos: Ids that end an answer.
        pad: Fills shorter prompts of a batch up, and is always masked.
        warnings: What a result has to say of the checkpoint's settings.
    """

    eos: tuple[int, ...]
    pad: int
    warnings: tuple[str, ...]


def special_ids(order: LoadOrder, config: Any, tokenizer: Any) -> SpecialIds:
    """Return the ids that end and pad answers: those of generation_config.json, else config.json, else the tokenizer.

    What config.json says at its top goes before its text part, whose class fills in what it leaves out.

    Args:
        config: The folder's config, as transformers reads it.
        tokenizer: None where the folder has none.

    Raises:
        InvalidRequest: generation_config.json is no JSON object.

    Source: `GenerationConfig.from_model_config` of transformers 5.24.
    """
    settings, text = _generation_settings(order.model_path), config.get_text_config()
    places = (SimpleNamespace(**settings), config, text, tokenizer)
    eos, pad = ([getattr(place, name, None) for place in places] for name in ("eos_token_id", "pad_token_id"))
    named = next((ids for ids in eos if ids is not None), None)
    listed, ends = _listed(named), known_ids(named, text.vocab_size)
    ignored = {name: settings[name] for name in sorted(settings.keys() - HARMLESS_GENERATION_SETTINGS)}
    warnings = [f"the checkpoint's generation_config is not applied: {ignored}"] if ignored else []
    if named is not None and listed != ends:
        warnings.append(
            f"of the checkpoint's eos_token_id {named} only {list(ends)} ends answers: it has {text.vocab_size} ids"
        )
    # Padding is masked: any id that the vocabulary has will do.
    [padding, *_] = (*(token for ids in pad for token in known_ids(ids, text.vocab_size)), 0)
    return SpecialIds(ends, padding, tuple(warnings))


def _generation_settings(path: Path) -> dict[str, Any]:
    """Return what generation_config.json sets; empty without the file."""
    if not (file := path / "generation_config.json").is_file():
        return {}
    try:
        settings = json.loads(file.read_bytes())
        return {name: value for name, value in settings.items() if value is not None}
    except (ValueError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"{file} is no JSON object ({error}); save the model again") from error


def _listed(ids: object) -> tuple[object, ...]:
    return tuple(ids) if isinstance(ids, (list, tuple)) else (ids,)


def known_ids(ids: object, vocab_size: int) -> tuple[int, ...]:
    """Return what the vocabulary has of a checkpoint's pad_token_id or eos_token_id: one id, several, or None."""
    return tuple(
        token
        for token in _listed(ids)
        if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocab_size
    )


def meta_model(torch: Any, auto_model: Any, config: Any, *, trust_remote_code: bool) -> Any:
    """Return the model of a transformers config with all parameters on the meta device, tied parameters tied.

    Raises:
        ValueError, ImportError: Transformers has no such class.
    """
    with torch.device("meta"):
        model = auto_model.from_config(config, trust_remote_code=trust_remote_code)
    model.tie_weights()
    return model


def parameter_count(model: Any) -> int:
    """Return the number of a model's parameters, tied parameters counted once."""
    return sum(int(parameter.numel()) for parameter in model.parameters())


def seed_of(name: str, weights: RandomWeights) -> int:
    """Return the seed of a parameter's own generator."""
    return int.from_bytes(hashlib.sha256(f"{weights.seed}:{name}".encode()).digest()[:7], "big")


def draw_uniform(torch: Any, values: Any, name: str, weights: RandomWeights) -> None:
    """Fill a tensor from U[low, high) by a generator seeded by its name; a tensor of integers with zeros.

    Equal names, seeds and shapes give equal values on the same kind of device.
    """
    if not values.is_floating_point():
        values.zero_()
        return
    generator = torch.Generator(values.device).manual_seed(seed_of(name, weights))
    # Drawn in float32: a CPU draws bfloat16 from 256 values only, and bit patterns decide what arithmetic costs.
    wide = torch.empty(values.shape, dtype=torch.float32, device=values.device)
    values.copy_(wide.uniform_(weights.low, weights.high, generator=generator))
