"""The client of engines behind a server, against a server that does what it should not."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from contract.runner_process import LLAMACPP_PYTHON, ROOT

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("in_served.py")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    if not LLAMACPP_PYTHON.exists():
        pytest.skip(f"no environment with aiohttp at {LLAMACPP_PYTHON}")
    paths = f"{ROOT / 'runners/common'}:{ROOT / 'proto'}"
    # No proxy may stand between.
    environ = {
        **os.environ,
        "PYTHONPATH": paths,
        "http_proxy": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }
    done = subprocess.run([LLAMACPP_PYTHON, PROGRAM], env=environ, stdout=subprocess.PIPE, check=True)
    by_kind: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return by_kind


def test_tokens_are_ids_and_their_gaps_what_the_client_saw(outcomes: dict[str, Any]) -> None:
    """Three events of one id each, and one event of two ids, which came together."""
    assert outcomes["GOOD"]["tokens"] == 6
    assert len(outcomes["GOOD"]["gaps_s"]) == 4
    # A client that is late sees a gap shorter than the server's, but no event together with the one before.
    assert min(outcomes["GOOD"]["gaps_s"]) > 0
    assert outcomes["TWO_AT_ONCE"]["tokens"] == 5
    assert outcomes["TWO_AT_ONCE"]["gaps_s"][-1] == 0


def test_tokens_without_ids_are_counted_as_the_server_counts_them(outcomes: dict[str, Any]) -> None:
    """Two of five; and none where it sends all."""
    assert (outcomes["COUNTS_MORE"]["tokens"], outcomes["COUNTS_MORE"]["tokens_without_ids"]) == (8, 2)
    assert outcomes["GOOD"]["tokens_without_ids"] == 0


def test_a_server_that_counts_no_tokens_cannot_tell_of_others(outcomes: dict[str, Any]) -> None:
    """While one that counts tells of a request that began before a pass, or within it, or outlasted it."""
    assert outcomes["GOOD"]["others_counted"] is True
    # One behind a balancer counts a part.
    assert outcomes["COUNTS_MORE"]["others_counted"] is False
    assert (outcomes["uncounted"]["tokens"], outcomes["uncounted"]["others_counted"]) == (3, False)


def test_the_client_tells_its_own_cost(outcomes: dict[str, Any]) -> None:
    """Of a thread that mostly waits, little."""
    assert 0 < outcomes["GOOD"]["client_cpu_share"] < 0.9
    assert outcomes["GOOD"]["client_late_s"] >= 0
    # Three seconds without a request are no lateness.
    assert outcomes["rests"]["tokens"] == 6
    assert outcomes["rests"]["client_late_s"] < 2


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("CLOSES", "RuntimeError", "the server closed the answer to request 1 before its end"),
        ("REFUSES", "InvalidRequest", "the engine's server answered 400: "),
        ("FAILS", "RuntimeError", "the engine's server answered 500: "),
        ("TELLS", "RuntimeError", "the cache is gone"),
        ("TELLS_LATE", "RuntimeError", "the cache is gone"),
        ("STAYS_OPEN", "RuntimeError", "the server ended its answers not within 0.5 s of their last tokens"),
        ("COUNTS_LESS", "RuntimeError", "the server sent 3 ids of the 2 tokens of request 1"),
        ("HANGS", "PassCancelled", "the client cancelled the pass"),
        ("another_before", "RuntimeError", "the server is busy with others' requests; measure the server alone"),
        ("another_beyond", "RuntimeError", "the server is busy with others' requests; measure the server alone"),
        ("another_within", "RuntimeError", " tokens of the pass were of others' requests; measure the server alone"),
        ("DIES", "WorkerDied", "the engine's server is gone: it ended with code 7"),
        ("LACKS", "OutOfMemory", "the engine's server: cuda: out of memory, 5 GiB"),
    ],
)
def test_a_server_s_fault_ends_the_pass_by_its_name(outcomes: dict[str, Any], what: str, kind: str, words: str) -> None:
    """And the sound request beside it does not hide it, nor does a warning of an earlier pass explain it."""
    assert outcomes["WARNS"]["tokens"] == 6
    assert outcomes[what]["kind"] == kind
    assert words in outcomes[what]["message"]


def test_a_server_ends_where_waiting_for_it_fails(outcomes: dict[str, Any]) -> None:
    """Nobody else has a hand on it then."""
    assert outcomes["left_by_a_look"] is False


def test_after_a_fault_the_server_serves_on_and_nothing_is_left_at_the_end(outcomes: dict[str, Any]) -> None:
    """A pass that was given up, too, leaves no request behind."""
    assert outcomes["afterwards"]["tokens"] == 3
    assert outcomes["left"] is False
