"""Headers of models that a stranger made large: read in little memory, or refused in one line."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest
from bounded import within_bounds
from make import models as tiny
from refused import raises

from wattdock.config import ModelSpec
from wattdock.errors import Cause, ConfigError
from wattdock.inputs import check_model
from wattdock_proto.headers import MAX_HEADER_BYTES
from wattdock_runner.checkpoint import weight_files
from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHECK = """
from pathlib import Path
from wattdock.config import ModelSpec
from wattdock.errors import ConfigError
from wattdock.inputs import check_model
"""
CHECKED = """
try:
    check_model(ModelSpec(path=Path(sys.argv[1])))
    print("whole")
except ConfigError as error:
    print(error)
"""
WEIGHTS_OF = """
from pathlib import Path
from wattdock_runner.errors import InvalidRequest
from wattdock_llamacpp_weights import weights_of
"""
WEIGHED = """
try:
    print(weights_of(Path(sys.argv[1])))
except InvalidRequest as error:
    print(error)
"""
ARRAY, STRING, UINT8 = 9, 8, 0


def tensors(count: int) -> bytes:
    """Return a header of so many tensors, named as those of Kimi K2 in 4 bits are."""
    entry = (
        '"model.layers.{}.mlp.experts.{}.down_proj.weight_packed":{{"dtype":"I32","shape":[1],"data_offsets":[{},{}]}}'
    )
    entries = [entry.format(at // 384, at % 384, 4 * at, 4 * at + 4) for at in range(count)]
    return ('{"__metadata__":{"format":"pt} \\" {"},' + ",".join(entries) + "}").encode()


def model(folder: Path, header: bytes, data_bytes: int = 0) -> Path:
    """Write a model whose weights are this header and nothing, which takes no room."""
    tiny.write(folder, {"config.json": b"{}"})
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + data_bytes)
    return folder


def test_the_largest_public_model_in_one_file_is_whole(tmp_path: Path) -> None:
    """207,000 tensors: 30 MB of header, and no object of each."""
    count = 207_000
    folder = model(tmp_path / "m", tensors(count), 4 * count)
    assert within_bounds(CHECK, CHECKED, folder, megabytes=150) == "whole\n"


def test_the_index_of_the_largest_public_model_is_read(tmp_path: Path) -> None:
    """23 MB of names, by coordinator and runner."""
    tiny.write(tmp_path, {"config.json": b"{}", "model-00001-of-000062.safetensors": tiny.weights()})
    name = "language_model.model.layers.{}.mlp.experts.{}.down_proj.weight_packed"
    names = {name.format(at // 384, at % 384): "model-00001-of-000062.safetensors" for at in range(207_000)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}, indent=2))
    check_model(ModelSpec(path=tmp_path))
    assert len(weight_files(tmp_path)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "header",
    [
        lambda size: b'{"w":{"data_offsets":[' + b"[]," * (size // 3) + b"0]}}",
        lambda size: b'{"w":' + b"[" * size,
        lambda size: b'{"' + b"\\" * size,
        lambda size: b'{"w":{' + b'"a":0,' * (size // 6) + b'"data_offsets":[0,0]}}',
        lambda size: b'{"w":{"data_offsets":[0,' + b"9" * size + b"]}}",
        lambda size: b" " * size,
    ],
    ids=["lists", "deep", "text", "keys", "digits", "blanks"],
)
def test_a_header_takes_no_more_memory_than_its_bytes(tmp_path: Path, header: Callable[[int], bytes]) -> None:
    """Of 99 MB it was read into 2.7 GB for half a minute."""
    at_most = model(tmp_path / "m", header(MAX_HEADER_BYTES - 100))
    assert within_bounds(CHECK, CHECKED, at_most, megabytes=150).count("\n") == 1


def test_a_header_larger_than_any_model_s_is_refused_unread(tmp_path: Path) -> None:
    """Whatever is in it."""
    larger = model(tmp_path, b" " * 99_000_000)
    assert "model.safetensors" in within_bounds(CHECK, CHECKED, larger, megabytes=50, seconds=20)


@pytest.mark.parametrize(
    "index",
    [b'{"weight_map":{}, "x": [' + b"{}," * 5_000_000 + b"0]}", b'{"weight_map": ' + b"[" * 900, b" " * 40_000_000],
    ids=["objects", "deep", "large"],
)
def test_a_forged_index_is_refused_by_coordinator_and_runner(tmp_path: Path, index: bytes) -> None:
    """Either reads it within the same bounds."""
    tiny.write(tmp_path, {"config.json": b"{}", "model.safetensors.index.json": index})
    assert "model.safetensors.index.json" in within_bounds(CHECK, CHECKED, tmp_path, megabytes=200)
    with raises(InvalidRequest, "model.safetensors.index.json"):
        weight_files(tmp_path)


def test_a_folder_that_is_gone_when_a_runner_looks_is_named(tmp_path: Path) -> None:
    """Between a plan and a load, or on another machine."""
    with raises(InvalidRequest, tmp_path / "absent", "No such file"):
        weight_files(tmp_path / "absent")


def forged(kind: int, count: int, values: bytes = b"") -> bytes:
    """Return a GGUF file whose one field claims an array."""
    name = b"tokenizer.ggml.tokens"
    field = struct.pack("<Q", len(name)) + name + struct.pack("<IIQ", ARRAY, kind, count)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field + values + bytes(64)


GGUFS = {
    "claims": forged(UINT8, 1 << 40),
    "claims texts": forged(STRING, 1 << 40),
    "many": forged(UINT8, 20_000_000, bytes(20_000_000)),
    "many texts": forged(STRING, 3_000_000, bytes(24_000_000)),
    "nested": forged(ARRAY, 2_000_000, struct.pack("<IQ", UINT8, 0) * 2_000_000),
    "tensors": b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0) + bytes(50_000_000),
    "fields": b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40) + bytes(1_000),
    "cut": b"GGUF" + struct.pack("<IQQ", 3, 1, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("content", GGUFS.values(), ids=GGUFS)
def test_a_forged_gguf_file_does_not_fill_the_runner(tmp_path: Path, content: bytes) -> None:
    """178 bytes filled 3 GB of the runner, whose reader had no guard."""
    (tmp_path / "x.gguf").write_bytes(content)
    said = within_bounds(WEIGHTS_OF, WEIGHED, tmp_path / "x.gguf", megabytes=1_000, seconds=120)
    assert said.count("\n") == 1
    assert said.startswith(("cannot read x.gguf", "x.gguf holds no tensors"))


def test_the_runner_reads_a_whole_gguf_file_and_passes_its_vocabulary_over(tmp_path: Path) -> None:
    """The tensors, as the library tells them."""
    said = within_bounds(WEIGHTS_OF, WEIGHED, tiny.gguf_file(tmp_path / "x.gguf"))
    assert said == "Weights(kind='float32', parameters=728, bytes=2144)\n"


@pytest.mark.parametrize(
    "header", [b'{"w":{"data_offsets":[0]}}', b'{"w":{"data_offsets":[0,-4]}}', b"[]", b"{} x", b"x"]
)
def test_a_header_whose_tensors_end_nowhere_is_refused(tmp_path: Path, header: bytes) -> None:
    """It is read as text, and every tensor of it must say where it ends."""
    with raises(ConfigError, "model.safetensors", cause=Cause.MALFORMED):
        check_model(ModelSpec(path=model(tmp_path, header)))


PROMPTS = """
from pathlib import Path
from wattdock.config import ExperimentConfig
from wattdock.errors import ConfigError
from wattdock.inputs.prompts import load_prompts
config = ExperimentConfig.model_validate({"workload": {"prompts": {"source": sys.argv[1]}}})
"""
LOADED = """
try:
    print(len(load_prompts(config, pass_index=0, vocab_size=9).prompts))
except ConfigError as error:
    print(error)
"""
ROOM = 40_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b'{"prompt": [' + b"[]," * (ROOM // 3) + b"0]}", "16,000,000"),
        (b'[{"prompt": [' + b"[]," * (ROOM // 3) + b"0]}]", "16,000,000"),
        (b"\n" * ROOM, "prompts"),
        (b" " * ROOM, "prompts"),
        (b'{"prompt": "' + b"x" * ROOM + b'"}', "16,000,000"),
    ],
    ids=["line", "array", "line feeds", "blanks", "text"],
)
def test_prompts_of_a_stranger_take_little_more_memory_than_their_file(
    tmp_path: Path, content: bytes, value: str
) -> None:
    """Of one record, a line may be as long as a file."""
    (tmp_path / "prompts").write_bytes(content)
    answer = within_bounds(PROMPTS, LOADED, tmp_path / "prompts", megabytes=900)
    assert value in answer
    assert answer.count("\n") == 1
