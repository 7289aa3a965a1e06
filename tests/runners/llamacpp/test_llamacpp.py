"""llama.cpp's server as a process of its own: its death, what it refuses, and a file that is quantised already."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import LLAMACPP_FOLDER, LLAMACPP_PYTHON, command_of, refusal, running
from contract.subjects import ONE_THREAD

from wattdock.launch.keeper import descendants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from contract.runner_process import Runner
    from runners.checkpoints import Checkpoint

pytestmark = pytest.mark.skipif(not LLAMACPP_PYTHON.exists(), reason=f"no llama.cpp environment at {LLAMACPP_PYTHON}")
SMALL = {**ONE_THREAD, "n_parallel": 2, "n_ctx": 512}


@pytest.fixture
def runner() -> Iterator[Runner]:
    with running("llamacpp", LLAMACPP_FOLDER, LLAMACPP_PYTHON) as runner:
        yield runner


def servers(runner: Runner) -> list[int]:
    return [pid for pid in descendants(runner.process.pid) if "wattdock_llamacpp_server" in command_of(pid)]


def test_a_server_that_dies_in_a_pass_is_named_and_the_runner_serves_again(
    runner: Runner, checkpoint: Checkpoint
) -> None:
    """By the code it ended with; and none is left once the model is unloaded, or the runner killed."""
    loaded, _ = runner.load(checkpoint.folder, engine_args=SMALL)
    told = json.loads(loaded.effective_engine_args_json)
    assert [told[name] for name in ("dtype", "quantization", "kv_cache_dtype")] == ["float32", None, "float16"]
    call = runner.start_long()
    [server] = servers(runner)
    os.kill(server, signal.SIGKILL)
    code, detail = refusal(call)
    assert code == "ABORTED"
    assert "the engine's server is gone: it ended with code -9" in detail
    runner.unload()
    runner.load(checkpoint.folder, engine_args=SMALL)
    [server] = servers(runner)
    runner.process.kill()
    runner.process.wait()
    while os.path.exists(f"/proc/{server}") and "wattdock_llamacpp_server" in command_of(server):  # noqa: PTH110
        pass


def test_a_server_that_does_not_come_up_says_why(runner: Runner, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """A file that is no GGUF; a model of another kind."""
    (tmp_path / "config.json").write_text((checkpoint.folder / "config.json").read_text())
    (tmp_path / "x.gguf").write_bytes(b"no gguf" * 100)
    code, detail = runner.refused_load(tmp_path, engine_args=SMALL)
    assert code == "INVALID_ARGUMENT"
    assert "the engine's server did not start: it ended with code" in detail
    assert servers(runner) == []
    (tmp_path / "x.gguf").unlink()
    other = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "gpt2"}
    (tmp_path / "config.json").write_text(json.dumps(other))
    code, detail = runner.refused_load(tmp_path, engine_args=SMALL)
    assert (code, "model_type 'gpt2' cannot be written as GGUF" in detail) == ("INVALID_ARGUMENT", True)
