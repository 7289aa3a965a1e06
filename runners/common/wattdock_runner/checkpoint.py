"""Read what a model folder says beside its weights, and draw weights, the same way for every backend.

Transformers and torch are duck-typed: nothing is imported.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock_runner.backend import LoadOrder, RandomWeights

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
# Settings of a checkpoint that a pass keeps, and those that change no output; all others are ignored with a warning.
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


def read_from_folder(auto_class: Any, order: LoadOrder) -> Any:
    """Return what a class of transformers (AutoConfig, AutoTokenizer) makes of the model folder, offline."""
    return auto_class.from_pretrained(
        order.model_path, local_files_only=True, trust_remote_code=order.trust_remote_code
    )


def read_tokenizer(auto_tokenizer: Any, order: LoadOrder) -> Any:
    """Return the folder's tokenizer, or None where it holds none."""
    if not any((order.model_path / name).is_file() for name in TOKENIZER_FILES):
        return None
    return read_from_folder(auto_tokenizer, order)


def eos_token_ids(eos: int | list[int] | tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the ids that end a sequence, from a checkpoint's `eos_token_id`."""
    return tuple(eos) if isinstance(eos, (list, tuple)) else () if eos is None else (int(eos),)


def ignored_settings_warnings(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a warning about the generation settings of a checkpoint that no pass applies; empty without any."""
    ignored = {name: settings[name] for name in sorted(settings.keys() - HARMLESS_GENERATION_SETTINGS)}
    return (f"the checkpoint's generation_config is not applied: {ignored}",) if ignored else ()


def meta_model(torch: Any, auto_model: Any, config: Any, *, trust_remote_code: bool) -> Any:
    """Return the model of a transformers config with all its parameters on the meta device, tied ones tied.

    Raises:
        ValueError, ImportError: Transformers has no such class.
    """
    with torch.device("meta"):
        model = auto_model.from_config(config, trust_remote_code=trust_remote_code)
    model.tie_weights()
    return model


def draw_uniform(torch: Any, values: Any, name: str, weights: RandomWeights) -> None:
    """Fill a tensor from U[low, high) by a generator seeded by its name; one that holds integers is filled with zeros.

    Equal names, seeds and shapes give equal values on the same kind of device.
    """
    if not values.is_floating_point():
        values.zero_()
        return
    digest = hashlib.sha256(f"{weights.seed}:{name}".encode()).digest()
    generator = torch.Generator(values.device).manual_seed(int.from_bytes(digest[:7], "big"))
    # Drawn in float32: a CPU draws bfloat16 from 256 values only, and bit patterns decide what arithmetic costs.
    wide = torch.empty(values.shape, dtype=torch.float32, device=values.device)
    values.copy_(wide.uniform_(weights.low, weights.high, generator=generator))
