"""What the runners of engines that cannot be had here promise alike, over a stand-in for each engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import ids_prompt, output_ids, running, workload
from contract.subjects import SGLANG, SMALL_UNIFORM, TENSORRT, Subject
from launch.standins import state_of, wait_until
from seams.launch import descendants

from wattdock.errors import Cause
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Runner
    from contract.shared_runners import SharedRunners

# Settings that keep prompts in a cache, and how many of 70 tokens come from the cache the second time.
CACHING: dict[str, tuple[dict[str, Any], int]] = {
    "tensorrt": ({"kv_cache_config": {"enable_block_reuse": True}}, 64),
    "sglang": ({"disable_radix_cache": False}, 69),
}


@pytest.fixture(params=[TENSORRT, SGLANG], ids=lambda subject: subject.name)
def standin(request: pytest.FixtureRequest) -> Subject:
    """A backend whose engine is a stand-in."""
    subject: Subject = request.param
    if not subject.python.exists():
        pytest.skip(f"no environment at {subject.python}")
    return subject


def test_cached_prompt_tokens_are_counted_where_a_cache_is_on(standin: Subject, bare: Runner, load: Any) -> None:
    """Per request, as the engine counts them."""
    settings, cached = CACHING[standin.name]
    load(**settings)
    first, second = (bare.generate(workload(), [ids_prompt(70)]).summary for _ in range(2))
    assert (first.cached_prompt_tokens, second.cached_prompt_tokens) == (0, cached)


def test_a_model_is_split_over_the_first_two_gpus_and_nothing_is_left_of_it(
    standin: Subject, bare: Runner, load: Any
) -> None:
    """Each part is a process."""
    # A load that failed in an earlier test may have left one.
    before = set(descendants(bare.process.pid))
    environment = load(tp_size=2).environment
    devices = dict.fromkeys(standin.gpus, 2)
    split = {"kind": "tensor", "tensor_parallel_size": 2, "devices": devices}
    assert json.loads(environment.parallelism_json) == split
    assert environment.used_gpu_uuids == list(standin.gpus)
    assert bare.generate(workload(), [ids_prompt(3)]).summary.output_tokens == 5
    bare.unload()
    # The last part ends a moment after the answer; a process that has ended may wait for its parent to notice.
    left = set(descendants(bare.process.pid)) - before
    wait_until(lambda: all(state_of(pid)[0] in "-Z" for pid in left))


def test_random_weights_follow_their_seed_and_leave_nothing_on_disk(
    standin: Subject, runners: SharedRunners, bare: Runner, folder: Path
) -> None:
    """The same seed gives the same answers, another one others."""
    answers = []
    for seed in (1, 1, 2):
        weights = pb.RandomWeights(low=-0.5, high=0.5, seed=seed)
        bare.load(folder, random_weights=weights, gpu_uuids=standin.gpus)
        answers.append(output_ids(bare.generate(workload(return_token_ids=True), [ids_prompt(5)])))
        bare.unload()
    assert answers[0] == answers[1] != answers[2]
    assert list((runners.stand_in(standin.name) / "cache").glob("wattdock-drawn-*")) == []


def test_a_load_without_room_is_resource_exhausted(standin: Subject, bare: Runner, folder: Path, fault: Path) -> None:
    """The lack comes as text from another process, and is told from other failures all the same."""
    fault.write_text("oom at load")
    refused = bare.refused_load(folder, random_weights=SMALL_UNIFORM, gpu_uuids=standin.gpus)
    assert (refused[0], refused.cause) == ("RESOURCE_EXHAUSTED", Cause.MEMORY)


def test_without_its_engine_a_runner_says_what_is_missing(standin: Subject, folder: Path) -> None:
    """It answers all the same: in an environment of another backend, or in an image that went wrong."""
    with running(standin.name, standin.folder, standin.python) as runner:
        assert runner.stub.Describe(pb.DescribeRequest()).framework_version == ""
        findings = {finding.name: finding for finding in runner.stub.Diagnose(pb.DiagnoseRequest()).findings}
        assert findings["engine arguments"].status == "fail"
        # Only TensorRT-LLM's runner was never run with its engine.
        assert (f"{standin.name} runner" in findings) == (standin.name == "tensorrt")
        code, detail = runner.refused_load(folder)
        assert (code, "requirements file" in detail) == ("FAILED_PRECONDITION", True), detail
