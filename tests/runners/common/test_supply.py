"""Which requests a pass submits, and when an open loop submits them."""

from __future__ import annotations

from itertools import islice

import pytest

from wattdock_runner.backend import Arrival, Workload
from wattdock_runner.clock import NS_PER_S
from wattdock_runner.supply import PromptSupply, poisson_instants


def supply(prompts: str, clock_s: list[float], **fields: object) -> PromptSupply[str]:
    """Return a supply of one-letter prompts under a clock that shows `clock_s[0]`."""
    workload = Workload(Arrival.BATCH, in_flight=4, max_output_tokens=1, **fields)  # type: ignore[arg-type]
    return PromptSupply(workload, prompts, 0, lambda: round(clock_s[0] * NS_PER_S))


def take_all(source: PromptSupply[str], count: int) -> list[str]:
    """Return the prompts of each batch of `count` as one word."""
    return ["".join(prompt for _, prompt in batch) for batch in iter(lambda: source.take(count), [])]


def test_without_minima_each_prompt_is_used_once() -> None:
    """The last batch is whatever is left."""
    assert take_all(supply("abcde", [0.0]), 2) == ["ab", "cd", "e"]


@pytest.mark.parametrize(("min_requests", "batches"), [(7, ["abca", "bca"]), (2, ["ab"]), (3, ["abc"])])
def test_min_requests_is_met_exactly(min_requests: int, batches: list[str]) -> None:
    """Prompts repeat in order; fewer requests than prompts is a wish, too."""
    assert take_all(supply("abc", [0.0], min_requests=min_requests), 4) == batches


def test_min_duration_hands_out_whole_batches_until_it_is_over() -> None:
    """No batch is partial while the clock decides."""
    clock_s = [0.0]
    source = supply("abc", clock_s, min_duration_s=10.0, min_requests=3)
    assert len(source.take(4)) == 4
    clock_s[0] = 9.9
    assert [prompt for _, prompt in source.take(4)] == list("bcab")
    clock_s[0] = 10.0
    assert source.take(4) == []


def test_both_minima_must_be_met() -> None:
    """A long first batch does not excuse the requests."""
    clock_s = [20.0]
    source = supply("abc", clock_s, min_duration_s=10.0, min_requests=6)
    assert len(source.take(4)) == 4
    assert len(source.take(4)) == 4
    assert source.take(4) == []


def test_poisson_gaps_have_the_rates_mean_and_start_after_the_pass() -> None:
    """10,000 arrivals at 50 per second take about 200 s; their mean gap has a standard error of 1 %."""
    instants = list(islice(poisson_instants(50.0, 3, 1_000), 10_000))
    assert instants == sorted(instants)
    assert instants[0] >= 1_000
    assert instants[-1] / NS_PER_S == pytest.approx(200, rel=0.04)
