"""Which weights of a folder are read: engines' own loaders and the coordinator give one answer."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from make import models as tiny
from refused import raises
from seams.inputs import file_digests, stored_weights, weight_files
from wattdock_llamacpp_weights import gguf_file, weights_of

from wattdock.config import ExperimentConfig, ModelSpec
from wattdock.errors import ConfigError, WattdockError
from wattdock.inputs import ModelFolder, check_model, resolve_model
from wattdock_proto.v1 import runner_pb2 as pb
from wattdock_runner.errors import InvalidRequest
from wattdock_runner.messages import load_order_from

REPO = Path(__file__).resolve().parents[2]
WHOLE, INDEX, A, B = "model.safetensors", "model.safetensors.index.json", "a.safetensors", "b.safetensors"
CONSOLIDATED = "consolidated.00.safetensors"
COMMIT = "0123456789abcdef" * 2 + "01234567"
Content = dict[str, bytes]


def index(*names: str, **more: object) -> Content:
    """Return an index of weights that names these files."""
    return {INDEX: json.dumps({"weight_map": dict(enumerate(names)), **more}).encode()}


def weights(*names: str) -> Content:
    return dict.fromkeys(names, tiny.weights())


def folder(path: Path, content: Content) -> Path:
    """Write a model's folder with these weights."""
    for name, data in ({"config.json": tiny.files()["config.json"]} | content).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def experiment(backend: str, **section: object) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"name": "x", "backend": backend, "model": "a/b", backend: section})


SHARDS = weights(A, B) | index(A, B, metadata={})
# A folder's weights; then what transformers reads, and the backends that read the same. An engine that reads other
# files, or none, is refused before it starts.
FOLDERS: dict[str, tuple[Content, list[str], set[str]]] = {
    "whole": (weights(WHOLE), [WHOLE], {"pytorch", "vllm", "sglang", "tensorrt"}),
    "shards": (SHARDS, [A, B], {"pytorch", "vllm", "sglang", "tensorrt"}),
    "stale index": (weights(WHOLE) | index(A, B, metadata={}), [WHOLE], {"pytorch", "tensorrt"}),
    "broken index": (weights(WHOLE) | {INDEX: b"{"}, [WHOLE], {"pytorch", "tensorrt"}),
    "both": (weights(WHOLE) | SHARDS, [WHOLE], {"pytorch"}),
    "variant": (weights(WHOLE, "model.fp16.safetensors"), [WHOLE], {"pytorch"}),
    "variant in shards": (SHARDS | weights("model.fp16-1-of-2.safetensors"), [A, B], {"pytorch", "vllm", "sglang"}),
    "whole in index": (
        weights(WHOLE, "x.safetensors") | index(WHOLE, metadata={}),
        [WHOLE],
        {"pytorch", "vllm", "sglang"},
    ),
    "consolidated": (weights(WHOLE, CONSOLIDATED), [WHOLE], {"pytorch", "tensorrt"}),
    "consolidated beside shards": (SHARDS | weights(CONSOLIDATED), [A, B], {"pytorch", "sglang", "tensorrt"}),
    "consolidated below": (weights(WHOLE, f"original/{CONSOLIDATED}"), [WHOLE], {"pytorch", "sglang", "tensorrt"}),
    "pickles below": (
        weights(WHOLE, "onnx/model.safetensors") | {"original/consolidated.00.pth": b"x", "pytorch_model.bin": b"x"},
        [WHOLE],
        {"pytorch", "vllm", "sglang", "tensorrt"},
    ),
    "hidden": (weights(WHOLE, "._model.safetensors"), [WHOLE], {"pytorch", "vllm", "sglang", "tensorrt"}),
    "without metadata": (weights(A) | index(A), [A], {"vllm", "sglang", "tensorrt"}),
    "no index": (weights(A, B), [], set()),
    "pickled": ({"pytorch_model.bin": b"x"}, [], set()),
}


@pytest.mark.parametrize(("content", "read", "backends"), FOLDERS.values(), ids=FOLDERS)
@pytest.mark.parametrize("backend", ["pytorch", "vllm", "sglang", "tensorrt"])
def test_folders_are_taken_from_which_an_engine_reads_what_the_result_names(
    tmp_path: Path, backend: str, content: Content, read: list[str], backends: set[str]
) -> None:
    """Two backends would measure two models, and the result would name the weights of one."""
    path, spec = folder(tmp_path, content), ModelSpec(path=tmp_path)
    if backend not in backends:
        with raises(ConfigError, path):
            check_model(spec, experiment(backend))
        return
    check_model(spec, experiment(backend))
    assert [file.name for file in weight_files(path, backend=backend)] == read
    digests = file_digests(path, with_code=False)
    assert sorted(name for name in digests if name.endswith(".safetensors")) == read


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["pytorch", "vllm"])
def test_the_table_of_folders_is_what_engines_loaders_do(tmp_path: Path, backend: str) -> None:
    """The loaders of the locked versions, run on the same folders."""
    python = REPO / f"runners/{backend}/.venv/bin/python"
    if not python.exists():
        pytest.skip(f"{python} does not exist (a first `make run BACKEND={backend}` makes it)")
    paths = [folder(tmp_path / name, content) for name, (content, *_) in FOLDERS.items()]
    environ = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command: list[str | Path] = [python, Path(__file__).with_name("weight_loaders.py"), backend, *paths]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    same = {name for (name, (_, read, _)), files in zip(FOLDERS.items(), told, strict=True) if files == read}
    assert same == {name for name, (_, _, backends) in FOLDERS.items() if backend in backends}


def test_vllms_load_format_decides_whether_consolidated_weights_count(tmp_path: Path) -> None:
    """Mistral's folders hold their weights twice."""
    path = folder(tmp_path, SHARDS | weights(CONSOLIDATED))
    for load_format in ("safetensors", "hf"):
        check_model(ModelSpec(path=path), experiment("vllm", load_format=load_format))
    with raises(ConfigError, CONSOLIDATED, A):
        check_model(ModelSpec(path=path), experiment("vllm", load_format="mistral"))


GGUF = b"GGUF\3" + bytes(19)
P1, P2, P3 = (f"x.Q4-0000{part}-of-00003.gguf" for part in (1, 2, 3))


@pytest.mark.parametrize(
    ("names", "chosen", "read", "refused"),
    [
        (["x.gguf"], "", ["x.gguf"], ""),
        (["x.gguf", WHOLE], "", ["x.gguf"], ""),
        (["x.gguf", "mmproj-x.gguf", "x-imatrix.gguf", "mtp-x.gguf", "._x.gguf"], "", ["x.gguf"], ""),
        (["x.gguf", f"mtp-{P1}", f"mtp-{P2}", f"mtp-{P3}"], f"mtp-{P2}", [f"mtp-{P1}", f"mtp-{P2}", f"mtp-{P3}"], ""),
        (["x.Q4.gguf", "x.Q8.gguf"], "", [], "2 x.Q4.gguf x.Q8.gguf model:"),
        (["x.Q4.gguf", "x.Q8.gguf"], "x.Q8.gguf", ["x.Q8.gguf"], ""),
        ([P1, P2, P3], "", [P1, P2, P3], ""),
        ([P1, P2, P3, "x.Q8.gguf"], "", [], f"2 {P1} x.Q8.gguf model:"),
        ([P1, P2, P3, "x.Q8.gguf"], P2, [P1, P2, P3], ""),
        ([P1, P3], "", [], f"1 3 {P2}"),
        ([P2, P3], P3, [], f"1 3 {P1}"),
    ],
)
def test_coordinator_and_runner_take_one_whole_gguf_model(
    tmp_path: Path, names: list[str], chosen: str, read: list[str], refused: str
) -> None:
    """A folder of quantisations is the rule on hubs, and large models come in parts."""
    path = folder(tmp_path, {name: tiny.weights() if name == WHOLE else GGUF for name in names})
    spec = ModelSpec(path=path / chosen)
    order = load_order_from(pb.LoadRequest(model_path=str(path / chosen)), {}, "llamacpp")
    if refused:
        with raises(ConfigError, path, *refused.split()):
            check_model(spec, experiment("llamacpp"))
        with raises(InvalidRequest, *refused.removesuffix("model:").split()), gguf_file(order, None, ()):
            pass
        return
    check_model(spec, experiment("llamacpp"))
    with gguf_file(order, None, ()) as file:
        assert file == path / read[0]
    model = resolve_model(spec, home=tmp_path, progress=print, config=experiment("llamacpp"))
    assert (model.path, model.gguf, model.name) == (path, chosen, chosen or path.name)
    assert {name for name in model.files if name.endswith(".gguf")} == {*read}
    if WHOLE not in names:
        assert stored_weights(path, gguf=chosen).bytes == len(GGUF) * len(read)


def test_gguf_is_for_llama_cpp(tmp_path: Path) -> None:
    """No other engine is given such a file, whole folder or chosen; a pointer to a file is none."""
    path = folder(tmp_path, {"x.gguf": GGUF})
    with raises(ConfigError, "x.gguf", "backend: llamacpp", path):
        check_model(ModelSpec(path=path), experiment("pytorch"))
    folder(tmp_path, weights(WHOLE))
    check_model(ModelSpec(path=path), experiment("pytorch"))
    with raises(ConfigError, "pytorch", "x.gguf", "llamacpp"):
        check_model(ModelSpec(path=path / "x.gguf"), experiment("pytorch"))
    (path / "x.gguf").write_bytes(b"version https://git-lfs")
    with raises(ConfigError, "x.gguf", "vers"):
        check_model(ModelSpec(path=path), experiment("llamacpp"))


def test_weights_in_parts_are_added_up(tmp_path: Path) -> None:
    """The figures of one file, as often as there are parts."""
    whole = weights_of(tiny.gguf_file(tmp_path / "x.gguf"))
    for name in (P1, P2, P3):
        (tmp_path / name).write_bytes((tmp_path / "x.gguf").read_bytes())
    parts = weights_of(tmp_path / P1)
    assert (parts.parameters, parts.bytes) == (3 * whole.parameters, 3 * whole.bytes)


def cache(root: Path) -> Path:
    """Write a model as the hub's client does, a snapshot of links into a folder of blobs; return the snapshot."""
    repo = root / "models--owner--some-name"
    for number, (name, data) in enumerate(tiny.files().items()):
        blob, link = repo / "blobs" / str(number), repo / "snapshots" / COMMIT / name
        for file in (blob, link):
            file.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link.symlink_to(f"../../blobs/{number}")
    return repo / "snapshots" / COMMIT


def resolved(path: Path) -> ModelFolder:
    return resolve_model(ModelSpec(path=path), home=path, progress=pytest.fail)


def test_a_snapshot_in_the_hubs_cache_is_named_as_on_the_hub(tmp_path: Path) -> None:
    """By its own folder or a link to it; the content still has its fingerprint."""
    snapshot, plain = cache(tmp_path), resolved(tiny.write(tmp_path / "plain"))
    (tmp_path / "link").symlink_to(snapshot)
    for path in (snapshot, tmp_path / "link"):
        model = resolved(path)
        assert (model.name, model.path) == ("owner/some-name", snapshot)
        assert model.revision == f"hub-cache:{COMMIT}+{plain.revision}"
        assert model.changes_since(plain.files) == ""
    (snapshot.parents[1] / "blobs/2").write_bytes(tiny.weights(2.0))
    assert resolved(snapshot).changes_since(plain.files) == "model.safetensors has changed"


@pytest.mark.parametrize("with_model", [False, True])
def test_an_adapter_is_refused_with_its_base_and_how_to_merge_it(tmp_path: Path, with_model: bool) -> None:
    """Transformers would apply it where peft is installed, and vLLM would leave it out or read it as weights."""
    adapter: dict[str, Any] = {"peft_type": "LORA", "base_model_name_or_path": "owner/base"}
    content = {"adapter_config.json": json.dumps(adapter).encode(), **weights("adapter_model.safetensors")}
    path = tiny.write(tmp_path, content | (tiny.files() if with_model else {}))
    with raises(ConfigError, path, "'owner/base'", "merge_and_unload") as caught:
        check_model(ModelSpec(path=path), experiment("pytorch"))
    assert "\n" not in str(caught.value)


def test_weights_that_only_transformers_finds_are_refused(tmp_path: Path) -> None:
    """Its config.json may name another file, which no other engine reads."""
    content = {"config.json": b'{"transformers_weights": "x.safetensors"}', **weights(WHOLE, "x.safetensors")}
    with raises(WattdockError, "x.safetensors", "transformers_weights"):
        check_model(ModelSpec(path=folder(tmp_path, content)))
