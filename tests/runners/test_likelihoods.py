"""How likely real engines find texts after others: as plain transformers does, token by token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import PYTORCH_FOLDER, PYTORCH_PYTHON, ROOT, refusal, workload
from runners.test_real_engines import ENGINES

from wattdock.runner import RunnerClient
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from contract.runner_process import Runner
    from contract.shared_runners import SharedRunners
    from runners.checkpoints import Checkpoint

# A space at the end, an empty context, which is a BOS alone, and more than one token of every length.
CONTEXTS = ("", "a watt ", "the quick brown", "0123456789 \u00e9", "fox jumps over the lazy dog  ", "a", "per second")
CONTINUATIONS = (" is a joule", "7", " \u00fc\n\n" * 3)


@pytest.fixture(scope="module")
def by_hand(checkpoint: Checkpoint) -> list[list[Any]]:
    from contract.runner_process import printed_by

    words = (str(checkpoint.folder), json.dumps(CONTEXTS), json.dumps(CONTINUATIONS))
    script = ROOT / "tests/runners/pytorch/likelihoods.py"
    rows: list[list[Any]] = json.loads(printed_by(script, *words, python=PYTORCH_PYTHON, folder=PYTORCH_FOLDER))
    return rows


@pytest.mark.parametrize("backend", ["pytorch", "vllm"])
def test_log_likelihoods_are_those_of_plain_transformers(
    runners: SharedRunners, checkpoint: Checkpoint, by_hand: list[list[Any]], backend: str
) -> None:
    """In batches of rows of different lengths; the span is of the computing; a pass runs after them as before."""
    runner, _ = runners.loaded(backend, checkpoint.folder, engine_args=ENGINES[backend])
    before = runner.generate(workload(return_text=True), [pb.Prompt(text="a watt")]).requests[0].text
    with RunnerClient(runner) as client:  # type: ignore[arg-type]
        pairs = [(context, continuation) for context, continuation, *_ in by_hand]
        scores, span = client.log_likelihoods(pairs, batch_size=3, timeout_s=120)
        long, _ = client.log_likelihoods([("a" * 600, " joule")], batch_size=3, timeout_s=120)
    for told, (_, _, likelihood, is_greedy, tokens) in zip(scores, by_hand, strict=True):
        assert told.log_likelihood == pytest.approx(likelihood, abs=1e-4)
        assert (told.is_greedy, told.tokens, told.left_out) == (is_greedy, tokens, 0)
    assert {told.is_greedy for told in scores} == {True, False}
    assert (span.name, span.start_ns < span.end_ns) == ("log-likelihood", True)
    # The model has 512 positions, the last token needs none, and vLLM generates one.
    assert 600 - 512 <= long[0].left_out + long[0].tokens <= 600
    assert long[0].left_out > 0
    assert runner.generate(workload(return_text=True), [pb.Prompt(text="a watt")]).requests[0].text == before
    for continuation, words in (("", "of pair 0 has 0 tokens"), ("a" * 600, "of pair 0 has ")):
        assert words in refused(runner, continuation)[1]


def refused(runner: Runner, continuation: str) -> tuple[str, str]:
    pair = pb.TextPair(context="a watt", continuation=continuation)
    return refusal(runner.stub.LogLikelihood(pb.LogLikelihoodRequest(pairs=[pair])) for _ in (1,))
