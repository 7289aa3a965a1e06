"""What every runner reads of a checkpoint: which weights, and which ids."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from wattdock_runner.checkpoint import LEGACY_CONFIGS, SpecialIds, read_config, require_known_quantisation, special_ids
from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path


OTHERS = "of the checkpoint's eos_token_id {} only {} ends answers: it has 32 ids"
# Settings of generation_config.json (None is no file), config.json and the tokenizer; ids that end, the id that pads.
SPECIAL: list[tuple[Any, dict[str, Any], dict[str, Any], tuple[int, ...], int, tuple[str, ...]]] = [
    (None, {}, {}, (), 0, ()),
    ({"eos_token_id": 2, "pad_token_id": 5}, {"eos_token_id": 3, "pad_token_id": 6}, {}, (2,), 5, ()),
    (None, {"eos_token_id": 3, "pad_token_id": 6}, {"eos_token_id": 4, "pad_token_id": 7}, (3,), 6, ()),
    ({"eos_token_id": None}, {"eos_token_id": [3, 31]}, {"eos_token_id": 4}, (3, 31), 0, ()),
    ({"use_cache": True}, {}, {"eos_token_id": 4, "pad_token_id": 7}, (4,), 7, ()),
    ({"pad_token_id": 32}, {"pad_token_id": -1}, {"pad_token_id": 7}, (), 7, ()),
    ({"pad_token_id": [True, 9]}, {}, {}, (), 9, ()),
    ({"eos_token_id": 2**32 - 1}, {"eos_token_id": 3}, {}, (), 0, (OTHERS.format(2**32 - 1, []),)),
    ({"eos_token_id": -1}, {}, {}, (), 0, (OTHERS.format(-1, []),)),
    ({"eos_token_id": True}, {}, {}, (), 0, (OTHERS.format(True, []),)),
    ({"eos_token_id": [2, 32, None]}, {}, {}, (2,), 0, (OTHERS.format([2, 32, None], [2]),)),
    ({"top_k": 20}, {}, {}, (), 0, ("the checkpoint's generation_config is not applied: {'top_k': 20}",)),
]


@pytest.mark.parametrize(("generation", "config", "tokenizer", "ends", "pad", "warnings"), SPECIAL)
def test_every_backend_ends_and_pads_by_one_rule(
    tmp_path: Path,
    generation: dict[str, Any] | None,
    config: dict[str, Any],
    tokenizer: dict[str, Any],
    ends: tuple[int, ...],
    pad: int,
    warnings: tuple[str, ...],
) -> None:
    """generation_config.json, else config.json, else the tokenizer; no engine gets what the vocabulary lacks."""
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    text = SimpleNamespace(vocab_size=32, **config)
    whole = SimpleNamespace(get_text_config=lambda: text)
    order: Any = SimpleNamespace(model_path=tmp_path)
    assert special_ids(order, whole, SimpleNamespace(**tokenizer)) == SpecialIds(ends, pad, warnings)
    if not tokenizer:
        assert special_ids(order, whole, None) == SpecialIds(ends, pad, warnings)


def test_ids_at_a_configs_top_go_before_those_of_its_text_part(tmp_path: Path) -> None:
    """Gemma 3 was published with two ends at the top, and its text part's class adds one."""
    text = SimpleNamespace(vocab_size=32, eos_token_id=1, pad_token_id=3)
    whole = SimpleNamespace(eos_token_id=[1, 6], pad_token_id=None, get_text_config=lambda: text)
    order: Any = SimpleNamespace(model_path=tmp_path)
    assert special_ids(order, whole, None) == SpecialIds((1, 6), 3, ())


@pytest.mark.parametrize("content", ["{", "[2]"])
def test_generation_settings_that_cannot_be_read_are_refused_by_name(tmp_path: Path, content: str) -> None:
    """Ends would be missing without a word."""
    (tmp_path / "generation_config.json").write_text(content)
    order: Any = SimpleNamespace(model_path=tmp_path)
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=32))
    with pytest.raises(InvalidRequest, match=r"generation_config\.json is no JSON object"):
        special_ids(order, config, None)


@pytest.mark.parametrize(
    ("settings", "names", "said"),
    [
        ({"quant_method": "awq", "bits": 4}, ["quant_config.json"], None),
        (None, ["hf_quant_config.json"], None),
        (None, ["quant_config.json"], "by quant_config.json, which this engine does not read; write its settings into"),
    ],
)
def test_packed_weights_are_never_taken_for_plain_ones(
    tmp_path: Path, settings: dict[str, Any] | None, names: list[str], said: str | None
) -> None:
    """Settings in a file that the engine does not read would be passed over without a word."""
    text = SimpleNamespace(quantization_config=settings)
    config = SimpleNamespace(get_text_config=lambda: text)
    order: Any = SimpleNamespace(model_path=tmp_path)
    for name in names:
        (tmp_path / name).touch()
    if said is None:
        assert require_known_quantisation(order, config, LEGACY_CONFIGS) == (settings or {})
        return
    with pytest.raises(InvalidRequest, match=said):
        require_known_quantisation(order, config, LEGACY_CONFIGS)


@pytest.mark.parametrize(("pad", "kept"), [(32, None), (-1, None), (31, 31)])
def test_a_config_keeps_a_pad_id_only_if_the_vocabulary_has_it(tmp_path: Path, pad: int, kept: int | None) -> None:
    """Torch refuses to make an embedding with another; the vocabulary may be that of a part of the model."""
    text = SimpleNamespace(pad_token_id=pad, vocab_size=32)
    whole = SimpleNamespace(get_text_config=lambda: text)
    auto_config = SimpleNamespace(from_pretrained=lambda *_, **__: whole)
    order: Any = SimpleNamespace(model_path=tmp_path, trust_remote_code=False)
    assert read_config(auto_config, order) is whole
    assert text.pad_token_id == kept
