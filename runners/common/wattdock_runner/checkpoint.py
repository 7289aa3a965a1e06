"""Read what a model folder says beside its weights, the same way for every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
# Settings of a checkpoint that a pass keeps, and those that change no output; all others are ignored, and said to be.
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


def has_tokenizer(folder: Path) -> bool:
    """Return whether the folder holds a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def eos_token_ids(eos: int | list[int] | tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the ids that end a sequence, from a checkpoint's `eos_token_id`."""
    return tuple(eos) if isinstance(eos, (list, tuple)) else () if eos is None else (int(eos),)


def ignored_settings_warnings(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a warning about the generation settings of a checkpoint that no pass applies; empty without any."""
    ignored = {name: settings[name] for name in sorted(settings.keys() - HARMLESS_GENERATION_SETTINGS)}
    return (f"the checkpoint's generation_config is not applied: {ignored}",) if ignored else ()
