"""llama.cpp's server as a process of its own: its death, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest
from contract.runner_process import command_of, ids_prompt, output_ids, refusal, workload
from contract.subjects import ONE_THREAD
from make import models as tiny
from safetensors.numpy import load_file, save_file

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Runner
    from contract.shared_runners import SharedRunners
    from runners.checkpoints import Checkpoint

SMALL = {**ONE_THREAD, "n_parallel": 2, "n_ctx": 512}


@pytest.fixture
def runner(runners: SharedRunners) -> Runner:
    return runners.bare("llamacpp")


def servers(runner: Runner) -> list[int]:
    return runner.children("wattdock_llamacpp_server")


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
    assert "code -9" in detail
    runner.unload()
    runner.load(checkpoint.folder, engine_args=SMALL)
    [server] = servers(runner)
    runner.process.kill()
    runner.process.wait()
    while os.path.exists(f"/proc/{server}") and "wattdock_llamacpp_server" in command_of(server):  # noqa: PTH110
        pass


def test_weights_of_sixteen_bits_are_read(runner: Runner, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """As bfloat16, which numpy does not know, they give the ids of the same numbers as float32."""
    (tmp_path / "config.json").write_text((checkpoint.folder / "config.json").read_text())
    weights = load_file(checkpoint.folder / "model.safetensors")
    halves = {name: values.view(np.uint32) >> 16 for name, values in weights.items()}
    save_file({name: (bits << 16).view(np.float32) for name, bits in halves.items()}, tmp_path / "model.safetensors")
    asked = workload(max_output_tokens=12, return_token_ids=True)
    runner.load(tmp_path, dtype="float32", engine_args=SMALL)
    ids = output_ids(runner.generate(asked, [ids_prompt(9)]))
    runner.unload()
    save_file({name: bits.astype(np.uint16) for name, bits in halves.items()}, tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = content[8:end].replace(b'"U16"', b'"BF16"')
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + content[end:])
    runner.load(tmp_path, dtype="float32", engine_args=SMALL)
    assert output_ids(runner.generate(asked, [ids_prompt(9)])) == ids


def test_a_server_that_does_not_come_up_says_why(runner: Runner, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """A file that is no GGUF; a model of another kind."""
    (tmp_path / "config.json").write_text((checkpoint.folder / "config.json").read_text())
    (tmp_path / "x.gguf").write_bytes(b"no gguf" * 100)
    code, detail = runner.refused_load(tmp_path, engine_args=SMALL)
    assert (code, "x.gguf" in detail) == ("INVALID_ARGUMENT", True)
    assert servers(runner) == []
    (tmp_path / "x.gguf").unlink()
    scaled = {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}
    given = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(given | scaled))
    code, detail = runner.refused_load(tmp_path, engine_args=SMALL)
    assert (code, "rope_type" in detail) == ("INVALID_ARGUMENT", True)
    other = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "gpt2"}
    (tmp_path / "config.json").write_text(json.dumps(other))
    code, detail = runner.refused_load(tmp_path, engine_args=SMALL)
    assert (code, "model_type 'gpt2'" in detail) == ("INVALID_ARGUMENT", True)


def test_a_template_in_the_file_is_not_used_and_may_raise(
    runner: Runner, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Prompts come as ids, rendered by the template of the tokenizer beside the file."""
    folder = shutil.copytree(checkpoint.folder, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    tiny.gguf_file(folder / "x.gguf", "{{ raise_exception('no') }}")
    runner.load(folder, engine_args=SMALL | {"n_ctx": 64})
    assert len(servers(runner)) == 1
