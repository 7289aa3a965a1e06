"""What every runner reads of a checkpoint: which weights, and which ids."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from wattdock_runner.checkpoint import (
    known_ids,
    read_config,
    require_known_quantisation,
    require_same_weights,
    settings_warnings,
    weight_files,
)
from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def folder(path: Path, names: list[str], indexed: list[str]) -> Path:
    """Return a folder of empty files, and an index that names some if any."""
    for name in names:
        (path / name).touch()
    if indexed:
        (path / INDEX).write_text(json.dumps({"weight_map": dict(enumerate(indexed))}))
    return path


@pytest.mark.parametrize(
    ("names", "indexed", "read"),
    [
        ([WHOLE], [], [WHOLE]),
        ([WHOLE, "model.fp16.safetensors"], [WHOLE], [WHOLE]),
        (["a.safetensors", "b.safetensors", "model.fp16.safetensors"], ["a.safetensors", "b.safetensors"], None),
    ],
)
def test_a_folder_that_engines_read_alike_is_taken(
    tmp_path: Path, names: list[str], indexed: list[str], read: list[str] | None
) -> None:
    """What an index leaves out is read by nobody."""
    path = folder(tmp_path, names, indexed)
    require_same_weights(path, "vLLM")
    assert sorted(file.name for file in weight_files(path)) == (read or indexed)


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
    order: Any = SimpleNamespace(model_path=folder(tmp_path, names, []))
    unread = ("quantize_config.json", "quant_config.json")
    if said is None:
        assert require_known_quantisation(order, config, unread) == (settings or {})
        return
    with pytest.raises(InvalidRequest, match=said):
        require_known_quantisation(order, config, unread)


def test_a_broken_index_is_named(tmp_path: Path) -> None:
    """An engine would name its own line that read it."""
    folder(tmp_path, [WHOLE], [])
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(InvalidRequest, match=INDEX):
        require_same_weights(tmp_path, "vLLM")


@pytest.mark.parametrize(
    ("names", "indexed", "message"),
    [
        ([WHOLE], ["a.safetensors"], "vLLM would read a.safetensors from .*, and transformers reads model.safetensors"),
        ([WHOLE, "a.safetensors"], ["a.safetensors"], "would read a.safetensors from"),
        ([WHOLE, "model.fp16.safetensors"], [], "would read model.fp16.safetensors from"),
        (["a.safetensors", "consolidated.safetensors"], ["a.safetensors"], "would read consolidated.safetensors from"),
        (["model-00001-of-00002.safetensors"], [], "holds no model.safetensors, and no model.safetensors.index.json"),
    ],
)
def test_a_folder_that_an_engine_reads_otherwise_is_refused(
    tmp_path: Path, names: list[str], indexed: list[str], message: str
) -> None:
    """Two backends would measure two models, and the result would name the weights of one."""
    path = folder(tmp_path, names, indexed)
    with pytest.raises(InvalidRequest, match=message):
        require_same_weights(path, "vLLM")


@pytest.mark.parametrize(
    ("eos", "ends", "told"),
    [
        (None, (), ()),
        (2, (2,), ()),
        ([2, 31], (2, 31), ()),
        ((2, 31), (2, 31), ()),
        (4_294_967_295, (), ("of the checkpoint's eos_token_id 4294967295 only [] ends answers: it has 32 ids",)),
        (-1, (), ("of the checkpoint's eos_token_id -1 only [] ends answers: it has 32 ids",)),
        ([2, 32, None], (2,), ("of the checkpoint's eos_token_id [2, 32, None] only [2] ends answers: it has 32 ids",)),
    ],
)
def test_an_end_that_is_not_in_the_vocabulary_is_left_out_and_told(
    eos: object, ends: tuple[int, ...], told: tuple[str, ...]
) -> None:
    """No engine gets it, and the result says so."""
    assert known_ids(eos, 32) == ends
    assert settings_warnings({"eos_token_id": eos}, 32) == told


@pytest.mark.parametrize(("pad", "kept"), [(32, None), (-1, None), (31, 31)])
def test_a_config_keeps_a_pad_id_only_if_the_vocabulary_has_it(tmp_path: Path, pad: int, kept: int | None) -> None:
    """Torch refuses to make an embedding with another; the vocabulary may be that of a part of the model."""
    text = SimpleNamespace(pad_token_id=pad, vocab_size=32)
    whole = SimpleNamespace(get_text_config=lambda: text)
    auto_config = SimpleNamespace(from_pretrained=lambda *_, **__: whole)
    order: Any = SimpleNamespace(model_path=tmp_path, trust_remote_code=False)
    assert read_config(auto_config, order) is whole
    assert text.pad_token_id == kept
