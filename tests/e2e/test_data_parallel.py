"""Replicas from outside, on simulated GPUs of known power: shares, tails, and what scaling is meant."""

from __future__ import annotations

from typing import Any

import fake_nvml
import pyarrow.parquet as pq
import pytest
from command import Command, on_gpus
from e2e.test_study import write
from fake_nvml import FakeGpu, constant

ONE, TWO = fake_nvml.uuid_of(1), fake_nvml.uuid_of(2)
# Two requests, one for each replica: 40 and 4 steps of 50 ms.
UNEVEN = """
backend: fake
model: shape:tiny-llama
gpus: [0, 1]
repeats: {passes: 2}
warmup: {passes: 0}
workload: {prompts: {source: prompts.jsonl, count: 2}, batch_size: 2}
fake: {data_parallel_size: 2, step_s: 0.05}
"""
PROMPTS = '{"token_ids": [1, 2], "max_output_tokens": 40}\n{"token_ids": [1], "max_output_tokens": 4}\n'


def waits_s(requests: list[dict[str, Any]]) -> list[float]:
    """Return, per pass, how long after the first replica's last token the other one's came; a request each."""
    ends_ns: dict[int, list[int]] = {}
    for one in requests:
        ends_ns.setdefault(one["pass"], []).append(one["finished_ns"])
    return [(max(ends) - min(ends)) / 1e9 for ends in ends_ns.values()]


def test_waiting_for_the_last_replica_is_joules_of_the_one_that_waits(wattdock: Command) -> None:
    """200 and 100 W: the tail of each is its watts times the seconds without work, within the meter's uncertainty."""
    (wattdock.folder / "prompts.jsonl").write_text(PROMPTS)
    env = on_gpus(wattdock, FakeGpu(uuid=ONE, profile=(constant(200),)), FakeGpu(uuid=TWO, profile=(constant(100),)))
    done = wattdock("run", write(wattdock, UNEVEN), env=env)
    assert done.returncode == 0, done.stderr
    [row] = wattdock.results()
    assert row["environment"]["parallelism"] == {
        "kind": "data",
        "data_parallel_size": 2,
        "devices": {ONE: 1, TWO: 1},
    }
    split = row["data_parallel"]
    assert (split["data_parallel_size"], split["in_flight_per_replica"], split["scaling"]) == (2, 1, "strong")
    shares = split["replicas"]
    assert [one["gpu_uuids"] for one in shares] == [[ONE], [TWO]]
    assert sum(one["requests"] for one in shares) == row["performance"]["requests"] == 4
    assert sum(one["output_tokens"] for one in shares) == row["performance"]["output_tokens"] == 88
    tails = {one["gpu_uuids"][0]: one for one in shares}
    for uuid, watts in ((ONE, 200), (TWO, 100)):
        share = tails[uuid]
        allowed_j = 4 * share["tail_timing_j"] + 0.5
        assert share["tail_idle_j"] == pytest.approx(watts * share["tail_s"], abs=allowed_j)
    # In each pass one of them waits for 36 steps of the other, unless a busy machine held it up itself.
    [folder] = (wattdock.folder / "results").glob("2*")
    requests = pq.read_table(folder / "restarts/0/requests.parquet").to_pylist()
    waited_s, busy_s = waits_s(requests), [(one["finished_ns"] - one["submitted_ns"]) / 1e9 for one in requests]
    assert all(waited > 0.7 * 36 * 0.05 for waited in waited_s)
    tails_s = sum(one["tail_s"] for one in shares)
    assert sum(waited_s) <= tails_s <= 2 * row["performance"]["duration_s"] - sum(busy_s) + 1e-6
    assert split["tail_idle_j"] == pytest.approx(sum(one["tail_idle_j"] for one in shares))
    # Whichever waits, it is less than all that the one of 200 W took.
    assert split["tail_share"] == pytest.approx(split["tail_idle_j"] / row["energy"]["total_j"])
    assert 0 < split["tail_share"] < 200 / 300
    assert {one["replica"] for one in requests} == {0, 1}
    assert "replicas" in done.stdout
    assert "strong scaling" in done.stdout


def test_one_engine_and_two_replicas_generate_the_same_tokens(wattdock: Command) -> None:
    """Said by the command that compares any two results; results of other prompts are refused."""
    (wattdock.folder / "prompts.jsonl").write_text(PROMPTS)
    for text in (UNEVEN, UNEVEN.replace("data_parallel_size: 2, ", ""), UNEVEN.replace("count: 2", "count: 1")):
        assert wattdock("run", write(wattdock, text.replace("gpus: [0, 1]\n", ""))).returncode == 0
    one, two, other = sorted((wattdock.folder / "results").glob("2*"))
    done = wattdock("results", "agreement", one, two)
    assert done.stdout == "4 of 4 requests identical, 100.00% of tokens before a first difference\n"
    refused = wattdock("results", "agreement", one, other)
    assert refused.returncode == 2
    assert "prompts differs" in refused.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("pytorch.data_parallel_size=2", "workload.batch_size=3"), ("batch_size: 3", "data_parallel_size: 2")),
        (("pytorch.data_parallel_size=2", "pytorch.device_map=auto"), ("device_map: auto", "choose one")),
        (("pytorch.tp_size=2",), ("tp_plan: auto",)),
    ],
)
def test_splits_that_contradict_themselves_are_refused_before_anything_starts(
    wattdock: Command, settings: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """In one line, with the values."""
    done = wattdock("run", *(word for setting in settings for word in ("--set", setting)))
    assert done.returncode == 2, done.stderr
    for word in words:
        assert word in done.stderr
    assert wattdock.results() == []
