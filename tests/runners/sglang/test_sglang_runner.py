"""The SGLang runner over a stand-in for its server: ids, cached tokens, the server's own times, and what fails."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import SGLANG_FOLDER, ids_prompt, refusal, running, token_bytes, workload
from contract.subjects import SGLANG, SMALL_UNIFORM
from seams.launch import descendants

from wattdock.errors import Cause
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Pass, Runner
    from contract.shared_runners import SharedRunners

PYTHON = SGLANG.python
GPUS, BACKEND = SGLANG.gpus, SGLANG

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"no environment with torch and aiohttp at {PYTHON}")


def run(runner: Runner, prompts: list[pb.Prompt], **fields: Any) -> Pass:
    """Run one pass that returns ids."""
    return runner.generate(workload(**{"return_token_ids": True, **fields}), prompts)


@pytest.fixture
def served(runners: SharedRunners, folder: Path) -> Runner:
    """Return the runner with the module's model, which it keeps from test to test."""
    return runners.loaded(BACKEND.name, folder, random_weights=SMALL_UNIFORM, gpu_uuids=GPUS)[0]


def test_requests_that_the_cache_cannot_hold_together_are_refused(bare: Runner, load: Any) -> None:
    """Two of 39 tokens take three blocks of 16 each; SGLang would let one wait, unseen."""
    load(max_total_tokens=64, page_size=16)
    refused = bare.refused_pass(workload(max_output_tokens=30), [ids_prompt(9)] * 2)
    assert (refused[0], refused.cause) == ("RESOURCE_EXHAUSTED", Cause.KV_CACHE)
    assert all(words in refused[1] for words in ("2 requests", "6 blocks", " 4;", "mem_fraction_static"))
    assert run(bare, [ids_prompt(9)], max_output_tokens=30).summary.output_tokens == 30


def test_the_id_that_ends_an_answer_counts_and_ids_are_told_once_each(served: Runner) -> None:
    """Though a stream of SGLang's repeats all ids, unless it is told otherwise."""
    prompts = [pb.Prompt(token_ids=token_bytes([first, 9, 9])) for first in (7, 8)]
    stopped = run(served, prompts, ignore_eos=False, max_output_tokens=6).requests
    full = run(served, prompts, max_output_tokens=6).requests
    assert [(r.output_tokens, r.finish_reason) for r in stopped] == [(3, "stop"), (6, "length")]
    assert list(stopped[0].output_ids.ids)[-1] == 2
    assert [(r.output_tokens, r.finish_reason) for r in full] == [(6, "length")] * 2
    assert len(stopped[1].token_gaps_ns) == 5


def test_what_is_in_effect_is_read_back_with_the_radix_cache_off(bare: Runner, load: Any) -> None:
    """What the server was started with, and what it made of it."""
    loaded = load(max_running_requests=4, mem_fraction_static=0.5)
    effective = json.loads(loaded.effective_engine_args_json)
    named = {"disable_radix_cache": True, "enable_metrics": True, "mem_fraction_static": 0.5, "tp_size": 1}
    assert effective.items() >= (named | {"max_running_requests": 4, "max_total_num_tokens": 65536}).items()
    assert "model_path" not in effective
    assert loaded.environment.used_gpu_uuids == [GPUS[0]]
    code, detail = bare.refused_pass(workload(in_flight=5), [ids_prompt(3)] * 5)
    assert (code, "raise max_running_requests" in detail) == ("INVALID_ARGUMENT", True)


def test_replicas_each_have_a_server_and_a_gpu(runners: SharedRunners, bare: Runner, folder: Path) -> None:
    """And serve one queue; a pass tells the busiest client."""
    assert bare.model is None
    with running("sglang", SGLANG_FOLDER, PYTHON, gpus="0,1", stand_in=runners.stand_in("sglang")) as runner:
        order = {"random_weights": SMALL_UNIFORM, "gpu_uuids": GPUS, "engine_args": {"data_parallel_size": 2}}
        loaded, _ = runner.load(folder, **order)
        assert len(runner.children("wattdock_sglang_server")) == 2
        assert loaded.environment.used_gpu_uuids == list(GPUS)
        result = runner.generate(workload(arrival=pb.ARRIVAL_CLOSED, in_flight=2), [ids_prompt(5)] * 4)
        assert {request.replica for request in result.requests} == {0, 1}
        assert result.summary.serving.client_cpu_share > 0


@pytest.mark.parametrize(
    ("engine_args", "code", "named"),
    [
        ({"load_format": "dummy"}, "INVALID_ARGUMENT", "another model would run"),
        ({"json_model_override_args": "{}"}, "INVALID_ARGUMENT", "another model would run"),
        ({"speculative_algorithm": "NGRAM"}, "INVALID_ARGUMENT", "nobody would count"),
        ({"mem_fraction_statik": 0.5}, "INVALID_ARGUMENT", "nearest: 'mem_fraction_static'"),
        ({"api_key": "x"}, "INVALID_ARGUMENT", "has no argument 'api_key'"),
        ({"mem_fraction_static": 7.0}, "INVALID_ARGUMENT", "mem_fraction_static must be in (0, 1), got 7.0"),
    ],
)
def test_an_argument_that_cannot_be_had_is_refused(
    bare: Runner, folder: Path, engine_args: dict[str, object], code: str, named: str
) -> None:
    """By its name before anything starts, or by the server itself."""
    order = {"random_weights": SMALL_UNIFORM, "gpu_uuids": GPUS, "engine_args": engine_args}
    status, detail = bare.refused_load(folder, **order)
    assert (status, named in detail) == (code, True), detail
    assert list(descendants(bare.process.pid)) == []


def test_a_scheduler_that_is_gone_while_others_wait_for_it_ends_the_load(
    bare: Runner, folder: Path, fault: Path
) -> None:
    """The server's process lives, and its port never opens."""
    fault.write_text("waits for a rank")
    order = {"random_weights": SMALL_UNIFORM, "gpu_uuids": GPUS}
    status, detail = bare.refused_load(folder, **order)
    fault.unlink()
    assert (status, "it hangs without its engine" in detail) == ("ABORTED", True), detail
    assert list(descendants(bare.process.pid)) == []


@pytest.mark.parametrize(
    ("what", "code", "named"),
    [
        ("bad request", "INVALID_ARGUMENT", "the engine's server answered 400: "),
        ("refuses", "INTERNAL", "The input is too long"),
        ("gives up", "INTERNAL", "the engine's server answered 503: Aborted by a test"),
        ("cuts", "INTERNAL", "the server read 9 prompt tokens of request "),
        ("retracts", "RESOURCE_EXHAUSTED", "SGLang stopped a request 1 time(s) and computed it again"),
    ],
)
def test_a_request_that_the_server_does_not_serve_as_asked_fails_the_pass(
    served: Runner, fault: Path, what: str, code: str, named: str
) -> None:
    """By what the server said; and the next pass is served."""
    fault.write_text(what)
    status, detail = served.refused_pass(workload(), [ids_prompt(10)] * 2)
    assert (status, named in detail) == (code, True), detail
    fault.unlink()
    assert run(served, [ids_prompt(3)]).summary.output_tokens == 5


@pytest.mark.parametrize("victim", ["sglang::scheduler", "wattdock_sglang_server"])
def test_the_death_of_scheduler_or_server_ends_the_pass_by_name(bare: Runner, load: Any, victim: str) -> None:
    """The server looks for its processes each second, and ends with them; nothing is left."""
    load()
    call = bare.start_long()
    os.kill(bare.children(victim)[0], signal.SIGKILL)
    refused = refusal(call)
    assert (refused[0], refused.cause) == ("ABORTED", Cause.WORKER), refused
    bare.unload()
    assert bare.children("wattdock_sglang_server") == []
