"""Servers that somebody else started: real ones, and one that misbehaves as it is told."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import (
    LLAMACPP_FOLDER,
    LLAMACPP_PYTHON,
    ROOT,
    VLLM_PYTHON,
    command_of,
    ids_prompt,
    output_ids,
    printed_by,
    refusal,
    runner_environment,
    running,
    workload,
)
from contract.subjects import ONE_THREAD, UNIPROC
from make.openai_server import PROMPT_TOKENS, behaving
from runners.checkpoints import run
from seams.launch import descendants

from wattdock.errors import Cause
from wattdock_proto import asking
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from contract.runner_process import Runner
    from runners.checkpoints import Checkpoint

# Its environment has all that a client needs.
PYTHON = VLLM_PYTHON
START_S = 300
ASKED = {"model": "mine", "prompt": [5, 6, 7], "max_tokens": 300, "ignore_eos": True}
CHAT = pb.Prompt(messages_json=json.dumps([{"role": "user", "content": "a watt"}]))


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    if not PYTHON.exists():
        pytest.skip(f"no environment with aiohttp at {PYTHON}")
    with running("url", ROOT / "runners/url", PYTHON) as client:
        yield client


def load(runner: Runner, url: str, model: str = "stand-in") -> pb.Loaded:
    """Load a server; it needs no folder."""
    if runner.model:
        runner.unload()
    return runner.load(Path(), engine_args={"base_url": url, "model": model})[0]


@contextmanager
def serving(command: list[str], environ: dict[str, str], port: int) -> Iterator[tuple[str, int]]:
    """Start a server as a person would, and yield its address once it answers, and its pid."""
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as process:
        try:
            deadline_s = time.monotonic() + START_S
            while process.poll() is None and time.monotonic() < deadline_s:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def vllm_server(checkpoint: Checkpoint, environ: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Yield the address and the pid of vLLM's server, started by its own command."""
    port = free_port()
    words = f"--host 127.0.0.1 --port {port} --served-model-name mine --enforce-eager --dtype float32".split()
    words += "--max-num-seqs 4 --block-size 32 --num-gpu-blocks-override 40 --gpu-memory-utilization 0.1".split()
    words += ["--model", str(checkpoint.folder), "--distributed-executor-backend", UNIPROC]
    variables = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [str(VLLM_PYTHON), "-m", "vllm.entrypoints.openai.api_server", *words]
    with serving(command, {**os.environ, **variables, **environ}, port) as server:
        yield server


@pytest.fixture(scope="module")
def vllm_url(checkpoint: Checkpoint) -> Iterator[str]:
    with vllm_server(checkpoint, {}) as (url, _):
        yield url


@pytest.fixture(scope="module")
def llamacpp_url(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of llama.cpp's server with a GGUF file."""
    if not LLAMACPP_PYTHON.exists():
        pytest.skip(f"no llama.cpp environment at {LLAMACPP_PYTHON}")
    file, port = tmp_path_factory.mktemp("gguf") / "tiny.gguf", free_port()
    script, ends = ROOT / "tests/runners/url/make_gguf.py", map(str, checkpoint.eos_ids)
    printed_by(script, str(checkpoint.folder), str(file), *ends, python=LLAMACPP_PYTHON, folder=LLAMACPP_FOLDER)
    exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off", "n_parallel": 4, "n_ctx": 2048}
    settings = json.dumps({"model": str(file), **ONE_THREAD, **exact, "n_threads_http": 8})
    command = [str(LLAMACPP_PYTHON), str(LLAMACPP_FOLDER / "wattdock_llamacpp_server.py"), settings, str(port)]
    with serving(command, runner_environment(LLAMACPP_FOLDER, ""), port) as (url, _):
        yield url


def test_a_vllm_server_that_runs_gives_the_ids_that_vllm_gives_when_wattdock_starts_it(
    runner: Runner, checkpoint: Checkpoint, vllm_url: str
) -> None:
    """Which are plain transformers'; texts are tokenized there."""
    loaded = load(runner, vllm_url, "mine")
    environment = loaded.environment
    assert (environment.framework, environment.framework_version[:2]) == ("vllm", "0.")
    assert json.loads(loaded.effective_engine_args_json) == {"model": "mine", "context_tokens": 512}
    result = run(runner)
    assert output_ids(result) == checkpoint.continuations
    assert (result.summary.serving.tokens_without_ids, result.summary.serving.others_counted) == (0, True)
    ended = run(runner, ignore_eos=False)
    assert any(record.finish_reason == "stop" for record in ended.requests)
    assert ended.summary.serving.others_counted
    texts = runner.generate(workload(chat_template=True), [pb.Prompt(text="a watt"), CHAT])
    assert texts.requests[0].prompt_hash == texts.requests[1].prompt_hash
    [whole] = runner.generate(workload(return_text=True), [pb.Prompt(text="a watt")]).requests
    stop = next(letter for letter in whole.text[1:] if letter.isascii())
    stopped = runner.generate(workload(return_text=True, stop=[stop]), [pb.Prompt(text="a watt")])
    [cut] = stopped.requests
    assert (cut.text, cut.finish_reason) == (whole.text.partition(stop)[0], "stop")
    assert stopped.summary.serving.others_counted
    [plain] = runner.generate(workload(), [pb.Prompt(text="a watt")]).requests
    assert 0 < plain.prompt_tokens < texts.requests[0].prompt_tokens
    code, detail = runner.refused_pass(workload(), [ids_prompt(600)])
    assert (code, "600 + 5 positions, and the model has 512" in detail) == ("INVALID_ARGUMENT", True)


def test_a_pass_beside_another_client_of_a_vllm_server_is_refused(runner: Runner, vllm_url: str) -> None:
    """Whose requests begin before the pass and end after it; once it is gone, passes go on."""
    load(runner, vllm_url, "mine")
    gone = threading.Event()

    def ask_on() -> None:
        while not gone.is_set():
            asking.ask(vllm_url, "/v1/completions", ASKED)

    with ThreadPoolExecutor() as threads:
        # At any time one of them is in the middle of an answer.
        others = [threads.submit(ask_on) for _ in range(2)]
        time.sleep(1.0)
        code, detail = runner.refused_pass(workload(), [ids_prompt(9)])
        gone.set()
        for other in others:
            other.result()
    assert (code, "others' requests; measure the server alone" in detail) == ("INTERNAL", True)
    assert len(run(runner).requests) > 0


def test_a_llama_cpp_server_that_runs_gives_the_ids_that_llama_cpp_gives_when_wattdock_starts_it(
    runner: Runner, checkpoint: Checkpoint, llamacpp_url: str
) -> None:
    """Up to the first end, which it never draws where it is to ignore ends; it serves as many as it has slots."""
    loaded = load(runner, llamacpp_url, "tiny")
    assert loaded.environment.framework == "llama.cpp"
    assert json.loads(loaded.effective_engine_args_json)["max_in_flight"] == 4
    for ids, whole in zip(output_ids(run(runner)), checkpoint.continuations, strict=True):
        first = next((at for at, token in enumerate(whole) if token in checkpoint.eos_ids), len(whole))
        assert ids[:first] == whole[:first]
    [uncut] = runner.generate(workload(return_text=True), [ids_prompt(9)]).requests
    # The file's vocabulary is of numbers.
    text = uncut.text.partition("><")[0]
    [cut] = runner.generate(workload(return_text=True, stop=["><"]), [ids_prompt(9)]).requests
    assert (cut.text, cut.finish_reason, len(text) > 1) == (text, "stop", True)
    code, detail = runner.refused_pass(workload(in_flight=5), [ids_prompt(9)] * 5)
    assert (code, "raise the server's --parallel" in detail) == ("INVALID_ARGUMENT", True)


@pytest.mark.parametrize("behaviour", ["loads", "sglang"])
def test_a_server_that_is_loading_its_model_is_waited_for(runner: Runner, behaviour: str) -> None:
    """As long as it says so itself; the load says that it waits."""
    if runner.model:
        runner.unload()
    with behaving(behaviour) as (url, _):
        loaded, progress = runner.load(Path(), engine_args={"base_url": url, "model": "stand-in"})
    assert [step.stage for step in progress].count(f"{url} is loading its model") == 1
    assert loaded.environment.framework == "OpenAI-compatible server"


@pytest.mark.parametrize("behaviour", ["loading", "sglang-hung"])
def test_a_server_that_never_has_its_model_ends_the_load_in_one_line(behaviour: str) -> None:
    """It is no argument's fault, so no configuration error of the coordinator's."""
    if not PYTHON.exists():
        pytest.skip(f"no environment with aiohttp at {PYTHON}")
    program = (
        "import runpy, wattdock_url_engine; wattdock_url_engine.LOADING_S = 0.1; "
        "runpy.run_module('wattdock_runner', run_name='__main__', alter_sys=True)"
    )
    folder = ROOT / "runners/url"
    with running("url", folder, PYTHON, program=("-c", program)) as hasty, behaving(behaviour) as (url, _):
        code, detail = hasty.refused_load(Path(), engine_args={"base_url": url, "model": "stand-in"})
    assert (code, "\n" in detail) == ("FAILED_PRECONDITION", False)
    assert f"{url} answers /health with 503" in detail
    assert "it loads its model, or hangs, for 0.1 s; see its log" in detail


def test_a_server_that_hangs_as_one_that_loads_is_told_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An SGLang whose scheduler hangs says what one that loads says."""
    monkeypatch.setattr(asking, "TELL_S", 1.0)
    told: list[str] = []
    with behaving("sglang-hung") as (url, _), pytest.raises(asking.Unanswered):
        asking.wait_loaded(url, within_s=1.5, say=told.append)
    assert told == [
        f"{url} is loading its model",
        f"{url} answers /health with 503; it loads its model, or hangs, for 1 s",
    ]


@pytest.mark.parametrize("behaviour", ["vllm-dead", "tgi-dead"])
def test_a_server_whose_engine_has_failed_ends_the_load_at_once(runner: Runner, behaviour: str) -> None:
    """It says the same status as servers that load, which are waited for up to twenty minutes."""
    if runner.model:
        runner.unload()
    with behaving(behaviour) as (url, _):
        code, detail = runner.refused_load(Path(), engine_args={"base_url": url, "model": "stand-in"})
    assert (code, "\n" in detail, "is loading" in detail) == ("FAILED_PRECONDITION", False, False)
    assert f"{url} answers /health with 503" in detail
    assert "its engine has failed; see its log, and start it again" in detail


def test_a_vllm_server_whose_engine_dies_ends_the_pass_and_the_next_load_at_once(
    runner: Runner, checkpoint: Checkpoint
) -> None:
    """Though the server itself stays, as one is told to by VLLM_KEEP_ALIVE_ON_ENGINE_DEATH."""
    with vllm_server(checkpoint, {"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}) as (url, server):
        load(runner, url, "mine")
        call = runner.start_long()
        [engine] = [pid for pid in descendants(server) if command_of(pid).startswith("VLLM::EngineCore")]
        os.kill(engine, signal.SIGKILL)
        refused = refusal(call)
        assert (refused[0], refused.cause, "its engine has failed" in refused[1]) == ("ABORTED", Cause.WORKER, True)
        runner.unload()
        code, detail = runner.refused_load(Path(), engine_args={"base_url": url, "model": "mine"})
        assert (code, "its engine has failed" in detail) == ("FAILED_PRECONDITION", True)


@pytest.mark.parametrize("is_chat", [True, False])
def test_a_server_that_tells_no_ids_is_sent_texts_and_counts_itself(runner: Runner, *, is_chat: bool) -> None:
    """And the load says so; ids cannot be sent to it."""
    with behaving("") as (url, _):
        loaded = load(runner, url)
        assert list(loaded.environment.warnings) == ["tokens are as the server counts them: it tells no ids"]
        asked = workload(chat_template=is_chat, ignore_eos=False, return_text=True)
        result = runner.generate(asked, [pb.Prompt(text="a watt")] * 2)
        assert [record.text for record in result.requests] == ["a " * (5 if is_chat else 4)] * 2
        assert [(record.output_tokens, record.prompt_tokens) for record in result.requests] == [(5, PROMPT_TOKENS)] * 2
        assert result.summary.serving.tokens_without_ids == 10
        assert output_ids(result) == [[], []]
        assert [record.finish_reason for record in result.requests] == ["length"] * 2
        assert runner.refused_pass(workload(), [ids_prompt(9)])[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("behaviour", "code", "words"),
    [
        ("cut", "INTERNAL", "the server closed the answer to request 0 before its end"),
        ("dies", "ABORTED", "the server is gone: "),
        ("longer", "INTERNAL", "the server ignores max_tokens: request 0 got 6 tokens, not 5"),
        ("shorter", "INTERNAL", "the server ignores ignore_eos: request 0 got 1 tokens, not 5"),
        ("uncounted", "INTERNAL", "the server counts no tokens: it ignores stream_options.include_usage"),
        ("broken", "INTERNAL", "the engine's server sent an unknown event: data: {nonsense"),
        ("refuses", "INVALID_ARGUMENT", "the engine's server answered 400: "),
    ],
)
def test_what_a_server_does_wrong_ends_the_pass_by_its_name(
    runner: Runner, behaviour: str, code: str, words: str
) -> None:
    """In one line."""
    with behaving(behaviour) as (url, _):
        load(runner, url)
        refused = refusal(runner.start(workload(), [pb.Prompt(text="a watt")]))
    assert (refused[0], words in refused[1], "\n" in refused[1]) == (code, True, False), refused
