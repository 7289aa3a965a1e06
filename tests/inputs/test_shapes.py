"""Synthetic shapes: their figures, and the folder that a runner gets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from refused import raises
from seams.inputs import preset_of, shape_config

from wattdock.config import ModelSpec
from wattdock.errors import Cause, ConfigError
from wattdock.inputs import check_model, presets, resolve_model
from wattdock.inputs.architecture import architecture_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("qwen3-8b", 8_190_735_360),
        ("alia-40b", 40_433_885_184),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_a_shape_has_the_parameters_that_its_model_is_published_with(name: str, published: int) -> None:
    """One wrong figure in the shape would show here."""
    assert architecture_of(shape_config(name)).parameters == presets()[name].parameters == published


def test_every_known_model_says_where_its_figures_are_from_and_who_was_not_found_says_so() -> None:
    """A figure without a source is a guess, and two presets have some."""
    assert all(known.source for known in presets().values())
    assert [name for name, known in presets().items() if not known.verified] == ["alia-40b", "gpt-sw3-40b"]
    named = {name for name, known in presets().items() if preset_of(known.id or name) == known}
    assert named == presets().keys()


def test_a_shape_is_a_folder_with_nothing_but_a_config(tmp_path: Path) -> None:
    """Weights are the runner's to draw, there is nothing to download, and it is written once."""
    folder = resolve_model(ModelSpec(shape="tiny-llama"), home=tmp_path, progress=pytest.fail)
    assert [file.name for file in folder.path.iterdir()] == ["config.json"]
    assert json.loads((folder.path / "config.json").read_text()) == shape_config("tiny-llama")
    assert (folder.kind, folder.name, folder.vocab_size) == ("shape", "shape:tiny-llama", 4096)
    assert (folder.random_weights, folder.has_tokenizer) == (True, False)
    assert folder.revision is not None
    assert folder.path.name == f"tiny-llama-{folder.revision.removeprefix('config-sha256:')[:8]}"
    written_ns = (folder.path / "config.json").stat().st_mtime_ns
    assert resolve_model(ModelSpec(shape="tiny-llama"), home=tmp_path, progress=print) == folder
    assert (folder.path / "config.json").stat().st_mtime_ns == written_ns


@pytest.mark.parametrize(("name", "hint"), [("llama3.1-8b", "llama-3.1-8b?"), ("zzz", "alia-40b,")])
def test_an_unknown_shape_is_refused_with_the_nearest_known(name: str, hint: str) -> None:
    """Needs neither network nor writing."""
    with raises(ConfigError, name, hint, cause=Cause.UNKNOWN_SETTING):
        check_model(ModelSpec(shape=name))
