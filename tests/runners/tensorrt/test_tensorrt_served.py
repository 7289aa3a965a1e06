"""The TensorRT-LLM runner over the stand-in's own server: the ids of the engine in process, and what fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import ids_prompt, output_ids, refusal, token_bytes, workload
from contract.subjects import SMALL_UNIFORM, TENSORRT_SERVED, write_config, write_tokenizer

from wattdock.launch.keeper import descendants
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from contract.runner_process import Runner

PYTHON = Path(TENSORRT_SERVED.python)
GPUS, BACKEND = TENSORRT_SERVED.gpus, TENSORRT_SERVED.name
TWO_ENDS = {"eos_token_id": [2, 5]}
MODEL = {"random_weights": SMALL_UNIFORM, "gpu_uuids": GPUS}

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"no environment with torch and aiohttp at {PYTHON}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with a tokenizer, two ends of sequences and no weights."""
    made = write_config(tmp_path_factory.mktemp("model"), **TWO_ENDS)
    write_tokenizer(made)
    (made / "generation_config.json").write_text(json.dumps(TWO_ENDS))
    return made


def load(runner: Runner, folder: Path, **engine_args: object) -> dict[str, Any]:
    """Load a model's random weights, and return what is in effect."""
    loaded, _ = runner.load(folder, engine_args={"serve": True, **engine_args}, **MODEL)
    effective: dict[str, Any] = json.loads(loaded.effective_engine_args_json)
    return effective


def test_the_server_s_ids_are_those_of_the_engine_in_process(bare: Runner, folder: Path) -> None:
    """Drawn and greedy alike are sent so that the engine reads them as in process."""
    answers = []
    for serve in (True, False):
        assert load(bare, folder, serve=serve)["serve"] is serve
        passes = [workload(return_token_ids=True, sampling=pb.Sampling(temperature=each)) for each in (0.0, 0.7)]
        answers.append([output_ids(bare.generate(one, [ids_prompt(5)] * 2)) for one in passes])
        bare.unload()
    assert answers[0] == answers[1]


def test_the_id_that_ends_an_answer_counts_and_ends_are_the_checkpoint_s(bare: Runner, folder: Path) -> None:
    """The server itself knows its tokenizer's end only."""
    load(bare, folder)
    prompts = [pb.Prompt(token_ids=token_bytes([first, 9, 9])) for first in (7, 8, 9)]
    asked = {"in_flight": 3, "max_output_tokens": 6, "return_token_ids": True}
    stopped = bare.generate(workload(ignore_eos=False, **asked), prompts).requests
    full = bare.generate(workload(**asked), prompts).requests
    assert [(r.output_tokens, r.finish_reason) for r in stopped] == [(3, "stop"), (3, "stop"), (6, "length")]
    assert {list(record.output_ids.ids)[-1] for record in stopped[:2]} <= {2, 5}
    assert [(r.output_tokens, r.finish_reason) for r in full] == [(6, "length")] * 3


def test_what_is_in_effect_is_read_back_with_the_command_s_defaults(bare: Runner, folder: Path) -> None:
    """No route tells it; block reuse is off, and counted where it is on."""
    effective = load(bare, folder, max_batch_size=64)
    assert effective.items() >= {"max_batch_size": 64, "max_num_tokens": 8192, "tp_size": 1, "serve": True}.items()
    assert effective["kv_cache_config"]["enable_block_reuse"] is False
    bare.unload()
    load(bare, folder, kv_cache_config={"enable_block_reuse": True}, tp_size=2)
    assert len(bare.children("mpi4py.futures.server")) == 2
    passes = [bare.generate(workload(), [ids_prompt(70)]) for _ in range(2)]
    assert [done.summary.cached_prompt_tokens for done in passes] == [0, 64]
    bare.unload()
    assert list(descendants(bare.process.pid)) == []


def test_a_shape_has_a_tokenizer_of_numbers_and_a_checkpoint_without_any_is_refused(
    bare: Runner, folder: Path, tmp_path: Path
) -> None:
    """The server answers no request without."""
    shape = write_config(tmp_path / "shape")
    load(bare, shape)
    assert bare.generate(workload(), [ids_prompt(5)]).summary.output_tokens == 5
    bare.unload()
    shutil.copyfile(folder / "config.json", tmp_path / "config.json")
    (tmp_path / "model.safetensors").write_bytes(b"")
    code, detail = bare.refused_load(tmp_path, engine_args={"serve": True}, gpu_uuids=GPUS)
    assert (code, "trtllm-serve answers no request without a tokenizer" in detail) == ("INVALID_ARGUMENT", True), detail


@pytest.mark.parametrize("victim", ["mpi4py.futures.server", "wattdock_tensorrt_server"])
def test_the_death_of_worker_or_server_ends_the_pass_and_leaves_no_process(
    bare: Runner, folder: Path, victim: str
) -> None:
    """The server itself would wait for its worker for ever, in the pass and in its end."""
    load(bare, folder)
    call = bare.start_long()
    os.kill(bare.children(victim)[0], signal.SIGKILL)
    code, detail = refusal(call)
    assert (code, "the engine's server" in detail) == ("ABORTED", True), detail
    bare.unload()
    assert list(descendants(bare.process.pid)) == []


def test_what_does_not_fit_or_is_too_long_is_named(bare: Runner, folder: Path, fault: Path) -> None:
    """By the server's last words, and by its answer."""
    fault.write_text("oom at load")
    code, detail = bare.refused_load(folder, engine_args={"serve": True}, **MODEL)
    assert (code, "CUDA out of memory" in detail) == ("RESOURCE_EXHAUSTED", True), detail
    fault.unlink()
    load(bare, folder, max_num_tokens=64)
    code, detail = bare.refused_pass(workload(), [ids_prompt(80)])
    assert (code, "answered 400: " in detail and "should not exceed max_num_tokens" in detail) == (
        "INVALID_ARGUMENT",
        True,
    )
