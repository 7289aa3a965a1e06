"""Local model folders: what makes one whole, and how it is pinned."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from inputs import tiny

from wattdock.config import ModelSpec
from wattdock.errors import ConfigError, PreflightError
from wattdock.inputs import check_model, resolve_model
from wattdock.inputs.model_folder import sampled_revision

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "model.safetensors.index.json"


def test_a_whole_folder_is_used_where_it_lies(tmp_path: Path) -> None:
    """Nothing is copied, written or said."""
    path = tiny.write(tmp_path / "model")
    said: list[str] = []
    folder = resolve_model(ModelSpec(path=path), home=tmp_path / "home", progress=said.append)
    assert (folder.path, folder.kind, folder.name) == (path, "path", "model")
    assert (folder.has_tokenizer, folder.random_weights, folder.vocab_size) == (True, False, 32)
    assert folder.size_bytes == sum(map(len, tiny.files().values()))
    assert said == []
    assert not (tmp_path / "home").exists()


def test_a_folder_without_tokenizer_is_fine_and_says_so(tmp_path: Path) -> None:
    """Prompts of token ids need none."""
    path = tiny.write(tmp_path / "model")
    (path / "tokenizer.json").unlink()
    assert not resolve_model(ModelSpec(path=path), home=tmp_path, progress=print).has_tokenizer


def test_pytorch_weights_are_accepted(tmp_path: Path) -> None:
    """Older models have no safetensors."""
    check_model(ModelSpec(path=tiny.write(tmp_path, {"config.json": b"{}", "pytorch_model.bin": b"x"})))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config.json": None}, "no readable config.json"),
        ({"config.json": b"{"}, "config.json is not JSON"),
        ({"config.json": b"[]"}, "holds a list, not a JSON object"),
        ({"model.safetensors": None}, "no weights in"),
        ({"model.safetensors": tiny.weights()[:-1]}, "its header says"),
        ({"model.safetensors": tiny.weights() + b"\0"}, "its header says"),
        ({"model.safetensors": b"version https://git-lfs.github.com/spec/v1\n"}, "a pointer of git-lfs"),
        ({"model.safetensors": b""}, "is not a safetensors file"),
        ({INDEX: b"{}"}, "is not a weight index"),
        ({INDEX: json.dumps({"weight_map": {"w": "b", "x": "model.safetensors"}}).encode()}, "1 of 2 weight files are"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, bytes | None], message: str
) -> None:
    """Found before a runner is started, which would take a minute to find it."""
    path = tiny.write(tmp_path / "model")
    for name, content in change.items():
        if content is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(content)
    with pytest.raises(PreflightError, match=message) as caught:
        check_model(ModelSpec(path=path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_is_told_from_a_file(tmp_path: Path) -> None:
    """Giving the weights file instead of its folder is a common slip."""
    with pytest.raises(PreflightError, match="does not exist; give a folder"):
        check_model(ModelSpec(path=tmp_path / "absent"))
    (tmp_path / "file").touch()
    with pytest.raises(PreflightError, match="is a file; give a folder"):
        check_model(ModelSpec(path=tmp_path / "file"))


def test_other_weights_of_the_same_shape_have_another_revision(tmp_path: Path) -> None:
    """A fine-tune must not pass for its base model."""
    base = tiny.write(tmp_path / "a")
    same = tiny.write(tmp_path / "b")
    tuned = tiny.write(tmp_path / "c", tiny.files() | {"model.safetensors": tiny.weights(2.0)})
    assert sampled_revision(base) == sampled_revision(same) != sampled_revision(tuned)


def test_both_ends_of_a_large_weight_file_count(tmp_path: Path) -> None:
    """Fine-tunes of the last layers often leave the first ones as they were."""
    blank, large = bytes(1 << 20), 3
    ends = [(0, 0), (1, 0), (0, 1)]
    made = [tiny.files() | {"model.safetensors": bytes([a]) + blank * large + bytes([b])} for a, b in ends]
    assert len({sampled_revision(tiny.write(tmp_path / str(i), files)) for i, files in enumerate(made)}) == len(ends)


@pytest.mark.parametrize("given", [{"id": ModelSpec.EMBEDDED}, {"shape": "tiny-llama"}, {"path": "/x"}])
def test_a_revision_of_what_has_none_is_refused(given: dict[str, str]) -> None:
    """Ignoring it would pretend that something was pinned."""
    with pytest.raises(ConfigError, match="only a hub model has revisions"):
        check_model(ModelSpec.model_validate({**given, "revision": "main"}))


def test_a_config_without_vocabulary_size_leaves_it_unknown(tmp_path: Path) -> None:
    """Text prompts do not need it; synthetic ones are refused without."""
    path = tiny.write(tmp_path / "model", tiny.files() | {"config.json": b"{}"})
    folder = resolve_model(ModelSpec(path=path), home=tmp_path, progress=print)
    assert folder.vocab_size is None


def test_the_vocabulary_size_of_a_nested_text_config_is_found(tmp_path: Path) -> None:
    """Models with several parts keep it one level down."""
    nested = json.dumps({"text_config": {"vocab_size": 7}}).encode()
    path = tiny.write(tmp_path / "model", tiny.files() | {"config.json": nested})
    assert resolve_model(ModelSpec(path=path), home=tmp_path, progress=print).vocab_size == 7
