"""Settings laid over each other, as plain data. Pure."""

from __future__ import annotations

from typing import Any

from wattdock.config.experiment import model_mapping
from wattdock.config.workload import prompts_mapping

Settings = dict[str, Any]
MODEL_NAMES = {"id", "path", "shape"}


def laid_over(under: Settings, over: Settings) -> Settings:
    """Return `under` with `over` laid over it, mappings key by key; short forms are written out first.

    A model that is named anew replaces the other whole: the revision of one means nothing to the other.
    """
    under, over = _written_out(under), _written_out(over)
    merged = dict(under)
    for key, value in over.items():
        below = under.get(key)
        if not (isinstance(below, dict) and isinstance(value, dict)) or (
            key == "model" and not MODEL_NAMES.isdisjoint(value)
        ):
            merged[key] = value
        else:
            merged[key] = laid_over(below, value)
    return merged


def nested(name: str, value: Any) -> Settings:
    """Return {"a": {"b": value}} for "a.b"."""
    for part in reversed(name.split(".")):
        value = {part: value}
    settings: Settings = value
    return settings


def _written_out(data: Settings) -> Settings:
    """Return `data` with the strings that stand for mappings replaced by these."""
    forms = {"model": model_mapping, "prompts": prompts_mapping}
    return data | {key: form(data[key]) for key, form in forms.items() if key in data}
