"""The bare loops that the runner is compared with must compute what the runner computes, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from arms import Way
from contract.runner_process import PYTORCH_PYTHON, ROOT, running, token_bytes, workload
from contract.subjects import write_config

from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Pass, Runner

# Wide enough for continuations that differ from token to token.
WIDE_UNIFORM = pb.RandomWeights(low=-0.5, high=0.5, seed=1)
PROMPTS = [pb.Prompt(token_ids=token_bytes([5 + 7 * n + i for i in range(24)])) for n in range(5)]
NEW_TOKENS = 16


def needs(python: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not python.exists(), reason=f"no environment at {python}")


def passes(runner: Runner, arrival: pb.Arrival, *ways: Way) -> list[Pass]:
    return [
        runner.generate(
            workload(arrival=arrival, in_flight=2, max_output_tokens=NEW_TOKENS, seed=int(way), return_token_ids=True),
            PROMPTS,
        )
        for way in ways
    ]


def ids(done: Pass) -> list[list[int]]:
    return [list(request.output_ids.ids) for request in done.requests]


def check(done: list[Pass]) -> None:
    """Hold every pass against the first, the runner's own."""
    runner, *bare = done
    assert len({tuple(answer) for answer in ids(runner)}) == len(PROMPTS)
    assert all(len(set(answer)) > 2 for answer in ids(runner))
    assert len(runner.at_ns) > NEW_TOKENS
    for other in bare:
        assert ids(other) == ids(runner)
        assert other.summary.output_tokens == runner.summary.output_tokens == len(PROMPTS) * NEW_TOKENS
        # What a bare pass knows of time is the end of its span.
        assert other.at_ns == [other.summary.span.end_ns]


@needs(PYTORCH_PYTHON)
def test_the_bare_pytorch_loop_generates_the_runners_tokens(tmp_path: Path) -> None:
    """Equal ids, the last batch smaller than the rest, and no step recorded; slowed down or not."""
    folder = ROOT / "benchmarks/runners/bare_pytorch"
    with running("bare_pytorch", folder, PYTORCH_PYTHON) as runner:
        runner.load(write_config(tmp_path, dtype="float32"), random_weights=WIDE_UNIFORM)
        check(passes(runner, pb.ARRIVAL_BATCH, Way.RUNNER, Way.BARE, Way.SLOWED))
