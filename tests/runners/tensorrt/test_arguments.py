"""Reading TensorRT-LLM's arguments from its source, and the names of kept engines, without TensorRT-LLM."""

from __future__ import annotations

import ast
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import wattdock_tensorrt_engine
from wattdock_tensorrt_arguments import argument_for, classes_in, fields_of

from wattdock_runner.backend import Gpu, LoadOrder, RandomWeights
from wattdock_runner.json_ready import json_ready

if TYPE_CHECKING:
    from pathlib import Path

NONE = type(None)
SOURCE = """
class Base(Strict):
    model_config = ConfigDict()
    model: Union[str, Path] = Field()
    max_batch_size: Optional[int] = Field(default=2048)

class TorchLlmArgs(Base):
    _private: int = 1
    load: Literal["a", "b"] = "a"
    max_batch_size: int = 1
"""


def test_fields_are_those_of_the_class_and_its_bases() -> None:
    """The nearest declaration wins, as in Python."""
    fields = fields_of("TorchLlmArgs", classes_in(SOURCE))
    assert fields.keys() == {"model", "max_batch_size", "load"}
    assert fields["max_batch_size"].types == (int,)
    assert fields_of("Removed", classes_in(SOURCE)) == {}


@pytest.mark.parametrize(
    ("annotation", "types", "choices"),
    [
        ("Optional[int]", {int, NONE}, set()),
        ("PositiveInt", {int}, set()),
        ("Optional[List[int]]", {list, NONE}, set()),
        ("Optional[Dict[str, str]]", {dict, NONE}, set()),
        ("Optional[Literal['AUTO', 'NCCL']]", {str, NONE}, {"AUTO", "NCCL", None}),
        ("Union[str, SamplerType]", {str, bool, dict, float, int, list, NONE}, set()),
        ("bool | Literal['auto']", {bool, str}, set()),
        ("KvCacheConfig", {dict}, set()),
        ("Union[BuildCacheConfig, bool]", {dict, bool}, set()),
    ],
)
def test_types_are_what_json_may_bring(annotation: str, types: set[type], choices: set[object]) -> None:
    """Groups of settings are mappings; a name that only TensorRT-LLM knows may stand for anything."""
    argument = argument_for(ast.parse(annotation, mode="eval").body)
    assert (set(argument.types), set(argument.choices)) == (types, choices)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model folder with a weight file."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"w" * 2_000_000)
    return tmp_path


GPU = Gpu("GPU-1", "H200", 140_000_000_000)
SETTINGS = {"dtype": "bfloat16", "tensor_parallel_size": 1, "build_config": {"max_batch_size": 8}, "model": "/a"}


def test_an_engine_is_named_after_everything_that_changes_it(model: Path) -> None:
    """Not after where the model lies, which GPU of its kind builds it, nor what only matters once it runs."""

    def key(gpu: Gpu = GPU, weights: RandomWeights | None = None, **settings: object) -> str:
        order = LoadOrder(model, random_weights=weights)
        return wattdock_tensorrt_engine.engine_key(order, {**SETTINGS, **settings}, [gpu], [(9, 0)])

    first = key()
    assert key(model="/b", kv_cache_config={"max_tokens": 9}) == first
    assert key(Gpu("GPU-2", "H200", 140_000_000_000)) == first
    others = [
        key(dtype="float16"),
        key(tensor_parallel_size=2),
        key(build_config={"max_batch_size": 9}),
        key(Gpu("GPU-1", "H100", 80_000_000_000)),
        key(weights=RandomWeights(-1, 1, 1)),
        key(weights=RandomWeights(-1, 1, 2)),
    ]
    (model / "config.json").write_text('{"layers": 2}')
    others.append(key())
    (model / "model.safetensors").write_bytes(b"x" * 2_000_000)
    others.append(key())
    (model / "model.safetensors").write_bytes(b"x" * 1_999_999 + b"y")
    others.append(key())
    assert len({first, *others}) == 1 + len(others)


def test_a_build_that_fails_leaves_nothing_that_passes_for_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one builds again, and only then is it kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no")

    def touch(folder: Path) -> None:
        (folder / "engine").touch()

    def no_wait() -> None:
        pytest.fail("nobody else builds it")

    with pytest.raises(RuntimeError, match="no"):
        wattdock_tensorrt_engine.kept_engine("key", fail, no_wait)
    folder, was_built = wattdock_tensorrt_engine.kept_engine("key", touch, no_wait)
    assert ([file.name for file in folder.iterdir()], was_built) == (["engine"], True)
    assert wattdock_tensorrt_engine.kept_engine("key", fail, no_wait) == (folder, False)


def test_who_waits_for_another_build_says_so_and_takes_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build takes minutes, in which nothing else would show."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    begun, waited = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        begun.set()
        assert waited.wait(60)

    def never(folder: Path) -> None:
        pytest.fail("it is built already")

    with ThreadPoolExecutor() as pool:
        first = pool.submit(wattdock_tensorrt_engine.kept_engine, "key", slow, threading.Event().set)
        assert begun.wait(60)
        folder, was_built = wattdock_tensorrt_engine.kept_engine("key", never, waited.set)
        assert (first.result(60), was_built) == ((folder, True), False)


def test_scratch_of_the_living_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runners may draw at a time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with wattdock_tensorrt_engine.scratch_folder() as one, wattdock_tensorrt_engine.scratch_folder() as two:
        assert one != two
        assert one.is_dir()
    assert list(one.parent.glob("drawn-*")) == []


def test_a_set_is_written_in_one_order_whatever_the_process() -> None:
    """Two runners with equal arguments would seem to differ."""
    assert json_ready(frozenset("zyxab")) == ["a", "b", "x", "y", "z"]
