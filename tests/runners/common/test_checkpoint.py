"""What every runner reads of a checkpoint: which weights, and which ids."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from wattdock_runner.checkpoint import known_ids, read_config, settings_warnings

if TYPE_CHECKING:
    from pathlib import Path


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
