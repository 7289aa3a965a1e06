"""What vLLM's cache of keys and values may do to a pass: serve part of a prompt, or have too little room."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import ids_prompt, output_ids, workload
from contract.subjects import SMALL_UNIFORM
from runners.checkpoints import NEW_TOKENS, run

from wattdock.errors import Cause
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Runner
    from contract.shared_runners import SharedRunners

# vLLM's smallest on a CPU; a prompt must fill a block before the block can be cached.
BLOCK_TOKENS = 32
AT_ONCE: dict[str, Any] = {"arrival": pb.ARRIVAL_OPEN, "arrival_ns": range(0, 1_000_000, 10_000)}


@pytest.fixture
def small(runners: SharedRunners, model_path: Path) -> Runner:
    """Return a runner with room for one prompt of the model's whole context and a little more: 1 KiB a token."""
    engine_args = {"kv_cache_memory_bytes": 600_000, "block_size": BLOCK_TOKENS}
    return runners.loaded("vllm", model_path, engine_args=engine_args, random_weights=SMALL_UNIFORM)[0]


def test_cached_prompt_tokens_are_counted_where_caching_is_on(bare: tuple[Runner, Path]) -> None:
    """The second time, all but the last block come from the cache, and the tokens stay the same."""
    runner, folder = bare
    engine_args: dict[str, object] = {
        "enable_prefix_caching": True,
        "block_size": BLOCK_TOKENS,
        "kv_cache_memory_bytes": 1 << 26,
    }
    runner.load(folder, engine_args=engine_args, random_weights=SMALL_UNIFORM)
    prompts = [ids_prompt(4 * BLOCK_TOKENS + 5)]
    first, second = run(runner, prompts), run(runner, prompts)
    assert [record.summary.cached_prompt_tokens for record in (first, second)] == [0, 4 * BLOCK_TOKENS]
    assert second.requests[0].cached_prompt_tokens == 4 * BLOCK_TOKENS
    assert second.summary.prompt_tokens == 4 * BLOCK_TOKENS + 5
    assert output_ids(first) == output_ids(second)


def test_more_in_flight_than_the_kv_cache_holds_is_refused(small: Runner) -> None:
    """vLLM would preempt and compute twice, and the figure would be another workload's."""
    crowded = workload(in_flight=5, max_output_tokens=NEW_TOKENS, min_requests=5)
    refused = small.refused_pass(crowded, [ids_prompt(150), ids_prompt(20)])
    assert (refused[0], refused.cause) == ("RESOURCE_EXHAUSTED", Cause.KV_CACHE)
    # 190 tokens take 6 blocks and 60 take 2.
    assert "22 blocks" in refused[1]
    assert run(small, [ids_prompt(150)], in_flight=3).summary.output_tokens == NEW_TOKENS


@pytest.mark.parametrize(
    ("prompt_tokens", "changes", "named"),
    [
        (150, {}, "5 requests in flight need 25 blocks of KV cache for their first tokens alone, and there are"),
        (150, {"arrival": pb.ARRIVAL_CLOSED}, "5 requests in flight need 25 blocks of KV cache"),
        # What has arrived when the cache is full: four at least.
        (150, AT_ONCE, "3 of [45] requests ran, and the next one waited for 5"),
        # Admitted with 4 blocks each; four hold all 17 or 18 once they have grown by one.
        (120, AT_ONCE, "4 of 5 requests ran, and the next one waited for 4"),
    ],
)
def test_a_request_that_waits_for_room_in_the_kv_cache_fails_the_pass(
    small: Runner, prompt_tokens: int, changes: dict[str, Any], named: str
) -> None:
    """The length of answers that may end early is unknown; that fewer requests ran than asked for must show."""
    crowded = workload(in_flight=5, max_output_tokens=8, min_requests=5, ignore_eos=False, **changes)
    code, detail = small.refused_pass(crowded, [ids_prompt(prompt_tokens)])
    assert code == "RESOURCE_EXHAUSTED"
    assert re.search(named, detail), detail
    assert run(small, [ids_prompt(prompt_tokens)], in_flight=3, **changes).summary.requests == 1


@pytest.mark.parametrize("changes", [{"ignore_eos": False}, AT_ONCE], ids=["to the end", "open loop"])
def test_a_request_that_vllm_computed_twice_fails_the_pass(small: Runner, changes: dict[str, Any]) -> None:
    """Where nobody can know beforehand how many requests run how long, a full cache must not go unseen."""
    crowded = workload(in_flight=5, max_output_tokens=120, min_requests=5, **changes)
    refused = small.refused_pass(crowded, [ids_prompt(60)])
    assert (refused[0], refused.cause) == ("RESOURCE_EXHAUSTED", Cause.KV_CACHE)
    assert run(small, [ids_prompt(150)], in_flight=3, **changes).summary.requests == 1
