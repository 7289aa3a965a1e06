"""Model folders: what makes one whole, and how it is pinned."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make import models as tiny
from refused import raises
from seams.inputs import LONG_BYTES, file_digests, fingerprint, known_figures, stored_weights, weight_files

from wattdock.config import ExperimentConfig, ModelSpec
from wattdock.errors import Cause, ConfigError, PreflightError
from wattdock.files import MAX_JSON_BYTES
from wattdock.inputs import ModelFolder, check_model, resolve_model

INDEX = "model.safetensors.index.json"
TENSOR_BYTES = 4 * 4 * 2
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9085657\n"
SHARDS = json.dumps({"weight_map": {"w": "a.safetensors", "x": "b.safetensors"}}).encode()


def test_a_whole_folder_is_used_where_it_lies(tmp_path: Path) -> None:
    """Nothing is copied, written or said."""
    path = tiny.write(tmp_path / "model")
    said: list[str] = []
    folder = resolve_model(ModelSpec(path=path), home=tmp_path / "home", progress=said.append)
    assert (folder.path, folder.kind, folder.name) == (path, "path", "model")
    assert (folder.has_tokenizer, folder.random_weights, folder.vocab_size) == (True, False, 32)
    assert said == []
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt"])
def test_pickled_weights_are_refused_unless_safetensors_stand_beside_them(tmp_path: Path, name: str) -> None:
    """Reading them can run what whoever wrote them wanted; what else a training left behind is not read."""
    path = tiny.write(tmp_path, {"config.json": b"{}", name: b"x", "training_args.bin": b"x"})
    with raises(ConfigError, cause=Cause.RUNS_CODE):
        check_model(ModelSpec(path=path))
    tiny.write(tmp_path, {"model.safetensors": tiny.weights()})
    check_model(ModelSpec(path=path))


def test_a_path_that_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    """Longer than a name may be, and links in a circle."""
    (tmp_path / "circle").symlink_to("circle")
    for name, reason in (("a" * 300, "File name too long"), ("circle/m", "Too many levels of symbolic links")):
        with raises(ConfigError, reason, "check the path"):
            check_model(ModelSpec(path=tmp_path / name))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "../model.safetensors", "/model.safetensors"])
def test_an_index_cannot_name_pickles_or_files_elsewhere(tmp_path: Path, name: str) -> None:
    """Engines take the names of the files to read from there."""
    path = tiny.write(tmp_path / "model", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    tiny.write(tmp_path, {"model.safetensors": tiny.weights()})
    (path / INDEX).write_text(json.dumps({"weight_map": {"w": name}}))
    with raises(ConfigError, "model.safetensors.index.json"):
        check_model(ModelSpec(path=path))


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"config.json": None}, "config.json"),
        ({"config.json": b"{"}, "config.json JSON"),
        ({"config.json": b"[]"}, "config.json list"),
        ({"config.json": b'{"text_config": "x"}'}, "config.json str"),
        ({"config.json": b'\xef\xbb\xbf{"model_type": "llama"}'}, "config.json JSON BOM"),
        ({"config.json": b'{"is_encoder_decoder": true}'}, "decoder"),
        ({"config.json": b'{"text_config": {"num_hidden_layers": 3000000000}}'}, "says 3000000000 layers"),
        ({"config.json": b'{"llm_config": {"n_layers": 1001}}'}, "says 1001 layers"),
        ({"config.json": b'{"architectures": ["LlamaForSequenceClassification"]}'}, "LlamaForSequenceClassification"),
        # What a clone without git-lfs, a login page or a full disk leaves behind.
        ({"tokenizer.json": LFS_POINTER}, "tokenizer.json git-lfs"),
        ({"tokenizer.model": LFS_POINTER}, "tokenizer.model git-lfs"),
        ({"tokenizer_config.json": b"<html>"}, "tokenizer_config.json <html>"),
        ({"generation_config.json": b""}, "generation_config.json"),
        ({"config.json": b"[" * 100_000}, "config.json nested"),
        ({"model.safetensors": None}, "weights model.safetensors model.safetensors.index.json"),
        ({"model.safetensors": tiny.weights()[:-1]}, "model.safetensors header"),
        ({"model.safetensors": tiny.weights() + b"\0"}, "model.safetensors header"),
        ({"model.safetensors": b"version https://git-lfs.github.com/spec/v1\n"}, "model.safetensors git-lfs"),
        ({"model.safetensors": b""}, "model.safetensors 0"),
        ({"model.safetensors": tiny.with_header({"w": {"data_offsets": [0, 1e308]}})}, "model.safetensors header"),
        ({"model.safetensors": (10**9).to_bytes(8, "little")}, "model.safetensors 1000000000"),
        ({"model.safetensors": None, INDEX: b"{}"}, "model.safetensors.index.json"),
        ({"model.safetensors": None, INDEX: SHARDS, "a.safetensors": tiny.weights()}, "1 2 b.safetensors"),
        ({"model.safetensors": None, "model.fp16.safetensors": tiny.weights()}, "weights model.safetensors,"),
        ({"model.safetensors": None, "model-00001-of-00002.safetensors": tiny.weights()}, "weights"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, bytes | None], values: str
) -> None:
    """Found before a runner is started, which would take a minute to find it."""
    path = tiny.write(tmp_path / "model")
    for name, content in change.items():
        if content is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(content)
    with raises(ConfigError, path, *values.split()) as caught:
        check_model(ModelSpec(path=path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("beside", "counted"),
    [
        ({INDEX: SHARDS}, ["model.safetensors"]),
        ({INDEX: b"{"}, ["model.safetensors"]),
        ({INDEX: SHARDS, "a.safetensors": tiny.weights(), "b.safetensors": tiny.weights()}, ["model.safetensors"]),
        ({"model.fp16.safetensors": tiny.weights(), "consolidated.safetensors": b""}, ["model.safetensors"]),
        (
            {
                **{name: tiny.weights() for name in ("a.safetensors", "b.safetensors", "model-2.safetensors")},
                "model.safetensors": None,
                INDEX: SHARDS,
            },
            ["a.safetensors", "b.safetensors"],
        ),
    ],
)
def test_of_several_sets_of_weights_the_one_that_transformers_reads_counts(
    tmp_path: Path, beside: dict[str, bytes | None], counted: list[str]
) -> None:
    """A whole file stands before an index, whether the index is stale, broken or whole; variants count nothing."""
    content = {name: data for name, data in (tiny.files() | beside).items() if data is not None}
    path = tiny.write(tmp_path / "model", content)
    check_model(ModelSpec(path=path))
    assert [file.name for file in weight_files(path)] == counted
    assert stored_weights(path).bytes == len(counted) * TENSOR_BYTES


def gguf_with(fields: dict[str, str | int]) -> bytes:
    """Return a GGUF file without tensors: texts, and whole numbers of 16 bits."""
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields))
    for key, value in fields.items():
        held = (
            struct.pack("<IQ", 8, len(value)) + value.encode()
            if isinstance(value, str)
            else struct.pack("<IH", 2, value)
        )
        data += struct.pack("<Q", len(key)) + key.encode() + held
    return data + bytes(-len(data) % 32)


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (LFS_POINTER, "magic"),
        (None, "more than holds"),
        (gguf_with({"general.architecture": "clip"}), "vision projector"),
        (gguf_with({"general.architecture": "llama", "general.type": "adapter"}), "of type adapter"),
        (gguf_with({"general.architecture": "llama", "general.type": "model"}), ""),
        (gguf_with({"general.architecture": "llama", "split.count": 3}), "3 1 llama-gguf-split"),
        (gguf_with({"general.architecture": "llama", "split.count": 1}), ""),
    ],
)
def test_a_gguf_file_that_llamacpp_would_not_load_is_refused(
    tmp_path: Path, content: bytes | None, values: str
) -> None:
    """A download cut short, a projector beside its model, parts joined by cat; and a whole file."""
    path = tiny.write(tmp_path / "model", {"config.json": b"{}"})
    file = path / "x.gguf"
    file.write_bytes(tiny.gguf_file(path / "whole.gguf").read_bytes()[:-600] if content is None else content)
    with raises(ConfigError, file, *values.split()) if values else nullcontext():
        check_model(ModelSpec(path=file))


def test_a_missing_folder_is_told_from_a_file(tmp_path: Path) -> None:
    """Giving the weights file instead of its folder is a common slip."""
    with raises(ConfigError, "absent"):
        check_model(ModelSpec(path=tmp_path / "absent"))
    (tmp_path / "file").touch()
    with raises(ConfigError, "file"):
        check_model(ModelSpec(path=tmp_path / "file"))


def test_other_weights_of_the_same_shape_have_another_revision(tmp_path: Path) -> None:
    """A fine-tune must not pass for its base model, whichever end of a large file it changed."""
    base, same = tiny.write(tmp_path / "a"), tiny.write(tmp_path / "b")
    tuned = tiny.write(tmp_path / "c", tiny.files() | {"model.safetensors": tiny.weights(2.0)})
    blank = bytes(3 << 20)
    contents = {"d": b"0" + blank + b"0", "e": b"1" + blank + b"0", "f": b"0" + blank + b"1"}
    # A byte flipped in the middle.
    contents["g"] = b"0" + blank[: 1 << 20] + b"1" + blank[(1 << 20) + 1 :] + b"0"
    for name, content in contents.items():
        tiny.write(tmp_path / name, tiny.files() | {"model.safetensors": content})
        digest = file_digests(tmp_path / name, with_code=False)["model.safetensors"]
        assert digest == hashlib.sha256(content).hexdigest()
    assert len({fingerprint(file_digests(tmp_path / name, with_code=False)) for name in "cdefg"}) == 5
    revisions = [resolve_model(ModelSpec(path=path), home=tmp_path, progress=print).revision for path in (base, same)]
    assert revisions[0] == revisions[1] == fingerprint(file_digests(base, with_code=False))
    assert changes(file_digests(base, with_code=False), file_digests(tuned, with_code=False)) == (
        "model.safetensors has changed"
    )


def bytes_read() -> int:
    """Return how many bytes this process has read so far, from wherever."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_second_look_reads_no_weights_and_a_change_is_seen(tmp_path: Path) -> None:
    """A model of 16 GB would cost half a minute at each start; a change is told by ctime, which nobody sets."""
    path = tiny.write(tmp_path / "model")
    # Made long before this test: a file's state stands for its content from 3 s on.
    library = max(Path(np.__file__).parent.rglob("*.so"), key=lambda file: file.stat().st_size)
    weights = path / "model.safetensors"
    weights.unlink()
    weights.symlink_to(library)
    size_bytes, reads = library.stat().st_size, []
    for _ in range(2):
        before = bytes_read()
        files = file_digests(path, with_code=False)
        reads.append(bytes_read() - before)
        assert files["model.safetensors"] == hashlib.sha256(library.read_bytes()).hexdigest()
    assert reads[1] < size_bytes / 4 < size_bytes <= reads[0]
    weights.unlink()
    for content in (b"\0" * 9, b"\0\1" + b"\0" * 7):
        weights.write_bytes(content)
        os.utime(weights, ns=(1, 1))
        assert file_digests(path, with_code=False)["model.safetensors"] == hashlib.sha256(content).hexdigest()


def test_what_takes_long_to_hash_is_told(tmp_path: Path) -> None:
    """One line, with the size; without it a run would seem to hang."""
    path, said = tiny.write(tmp_path / "model"), list[str]()
    os.truncate(path / "model.safetensors", LONG_BYTES + 1)
    file_digests(path, with_code=False, progress=said.append)
    assert said == ["hashing model.safetensors (1.1 GB)"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_digests_of_an_earlier_version_count_as_far_as_they_told(name: str) -> None:
    """It kept 16 digits: of whole files, but of weights of their ends."""
    digest = hashlib.sha256(b"whole").hexdigest()
    assert changes({name: digest[:16]}, {name: digest}) == ""
    assert changes({name: hashlib.sha256(b"ends").hexdigest()[:16]}, {name: digest}) == f"{name} has changed"


DECISIVE = (
    *("config.json", "generation_config.json", "quantize_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "qwen.tiktoken", "tekken.json"),
    *("added_tokens.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json"),
    *("additional_chat_templates/tool_use.jinja", "model.safetensors", "model.Q4_1.gguf", INDEX),
    "params.json",
)
CODE = ("modeling_x.py", "custom_generate/generate.py", "layers/kernels/attention.py")


def changes(before: dict[str, str], now: dict[str, str]) -> str:
    folder = ModelFolder(Path(), "path", "m", None, has_tokenizer=False, random_weights=False, files=now)
    return folder.changes_since(before)


def whole(path: Path) -> Path:
    """Write a folder with every file that can decide the work."""
    for name in (*DECISIVE, *CODE):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"{}")
    (path / INDEX).write_text('{"weight_map": {"w": "model.safetensors"}}')
    return path


@pytest.mark.parametrize("name", [*DECISIVE, *CODE])
def test_each_file_that_decides_the_work_is_named_when_it_changes_comes_or_goes(tmp_path: Path, name: str) -> None:
    """An edited template or tokenizer sends other tokens, and generation settings end answers elsewhere."""
    path = whole(tmp_path / "model")
    before = file_digests(path, with_code=True)
    assert before.keys() == {*DECISIVE, *CODE}
    content = (path / name).read_bytes()
    # Of the same length, and without another meaning to JSON.
    (path / name).write_bytes(content + b" ")
    assert changes(before, file_digests(path, with_code=True)) == f"{name} has changed"
    if name in ("model.safetensors", INDEX):
        return
    (path / name).unlink()
    without = file_digests(path, with_code=True)
    assert changes(before, without) == f"{name} is gone"
    assert changes(without, before) == f"{name} is new"
    assert len({fingerprint(files) for files in (before, without)}) == 2


def test_a_draft_model_is_resolved_and_its_files_are_those_of_the_model(tmp_path: Path) -> None:
    """The model's own revision stays, and a draft that is trained on shows as a change."""
    model, draft = (ModelSpec(path=tiny.write(tmp_path / name)) for name in ("model", "draft"))
    alone = resolve_model(model, home=tmp_path, progress=print)
    config = ExperimentConfig.model_validate(
        {"backend": "vllm", "model": {"path": model.path}, "vllm": {"speculative_config": {"model": str(draft.path)}}}
    )
    folder = resolve_model(model, home=tmp_path, progress=print, config=config)
    assert folder.draft is not None
    assert (folder.draft.path, folder.draft.name, folder.revision) == (draft.path, "draft", alone.revision)
    assert folder.files == {**alone.files} | {f"draft/{name}": digest for name, digest in alone.files.items()}
    (tmp_path / "draft/generation_config.json").write_text('{"eos_token_id": 7}')
    assert folder.read_again().changes_since(folder.files) == "draft/generation_config.json is new"
    (tmp_path / "draft/consolidated.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match="vllm would read consolidated"):
        resolve_model(model, home=tmp_path, progress=print, config=config)


@pytest.mark.parametrize("stale", [False, True])
def test_the_weights_that_a_backend_reads_are_those_that_are_counted(tmp_path: Path, stale: bool) -> None:
    """llama.cpp reads a folder's GGUF file, whatever safetensors lie beside it, whole or cut short."""
    spec = ModelSpec(path=tiny.write(tmp_path / "model"))
    gguf = tiny.gguf_file(tmp_path / "model/x.gguf").stat().st_size
    if stale:
        (tmp_path / "model/model.safetensors").write_bytes(b"")
    sizes = {}
    for backend in ("llamacpp", "pytorch")[: 1 if stale else 2]:
        figures = known_figures(spec, config=ExperimentConfig(backend=backend, model=spec))
        sizes[backend] = figures and figures.stored and figures.stored.bytes
    assert sizes == {"llamacpp": gguf} | ({} if stale else {"pytorch": TENSOR_BYTES})


def test_code_counts_only_where_it_runs_and_other_files_never(tmp_path: Path) -> None:
    """A README may be edited, and training may have left thousands of files."""
    path = whole(tmp_path / "model")
    before = file_digests(path, with_code=False)
    assert before.keys() == {*DECISIVE}
    for name in ("README.md", "trainer_state.json", "modeling_x.py", "other/tokenizer.json", "optimizer.safetensors"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"other")
    for number in range(3_000):
        (path / f"sample-{number}.txt").touch()
    (path / "vocab.txt").mkdir()
    (path / "gone.model").symlink_to("nowhere")
    assert file_digests(path, with_code=False) == before


def test_a_tokenizer_larger_than_any_settings_is_read_to_its_end(tmp_path: Path) -> None:
    """Tokenizers of large vocabularies exceed what is read of other JSON."""
    path, padding = tiny.write(tmp_path / "model"), b" " * (2 * MAX_JSON_BYTES)
    digests = []
    for end in (b"1", b"2"):
        (path / "tokenizer.json").write_bytes(padding + end)
        digests.append(file_digests(path, with_code=False)["tokenizer.json"])
    assert digests[0] != digests[1]


def test_a_pipe_in_place_of_a_template_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Anybody may have made the folder."""
    path = tiny.write(tmp_path / "model")
    os.mkfifo(path / "chat_template.jinja")
    with raises(PreflightError, "chat_template.jinja", cause=Cause.NOT_A_FILE):
        resolve_model(ModelSpec(path=path), home=tmp_path, progress=print)


def test_a_file_behind_a_link_counts_by_its_content(tmp_path: Path) -> None:
    """A hub's cache is a folder of links, and what they lead to can be edited."""
    path, blob = tiny.write(tmp_path / "model"), tmp_path / "blob"
    blob.write_bytes((path / "tokenizer.json").read_bytes())
    before = file_digests(path, with_code=False)
    (path / "tokenizer.json").unlink()
    (path / "tokenizer.json").symlink_to(blob)
    assert file_digests(path, with_code=False) == before
    blob.write_bytes(b"[]")
    assert changes(before, file_digests(path, with_code=False)) == "tokenizer.json has changed"


@pytest.mark.parametrize("given", [{"id": ModelSpec.EMBEDDED}, {"shape": "tiny-llama"}, {"path": "/x"}])
def test_a_revision_of_what_has_none_is_refused(given: dict[str, str]) -> None:
    """Ignoring it would pretend that something was pinned."""
    with raises(ConfigError, "'main'"):
        check_model(ModelSpec.model_validate({**given, "revision": "main"}))


@pytest.mark.parametrize(
    ("config", "vocab_size"), [({}, None), ({"vocab_size": 9, "llm_config": {"vocab_size": 7}}, 7)]
)
def test_a_tokenizer_may_be_missing_and_the_vocabulary_size_unknown_or_nested(
    tmp_path: Path, config: dict[str, Any], vocab_size: int | None
) -> None:
    """Text prompts do not need the size, token ids no tokenizer; models with several parts keep it a level down."""
    path = tiny.write(tmp_path / "model", tiny.files() | {"config.json": json.dumps(config).encode()})
    (path / "tokenizer.json").rename(path / "tekken.json")
    folder = resolve_model(ModelSpec(path=path), home=tmp_path, progress=print)
    assert not ModelFolder.takes_text(ModelSpec(path=path)), "no runner reads Mistral's own form"
    assert (folder.vocab_size, folder.has_tokenizer) == (vocab_size, False)


def test_files_that_a_commands_words_and_args_name_are_hashed(tmp_path: Path) -> None:
    """A word of any length may name none."""
    (tmp_path / "train.py").write_text("pass\n")
    words = ["sh", "-c", "x" * 300, "{script}", "{gpus}", "."]
    section = {"command": words, "args": {"script": "train.py"}, "folder": str(tmp_path)}
    config = ExperimentConfig.model_validate({"backend": "measure", "measure": section})
    files = resolve_model(config.model, home=tmp_path, progress=print, config=config).files
    assert list(files) == ["train.py"]
    assert hashlib.sha256(b"pass\n").hexdigest().startswith(files["train.py"])
