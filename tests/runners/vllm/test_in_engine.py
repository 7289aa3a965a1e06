"""What a real engine generates in the benchmarks' ways, and what becomes of what goes wrong inside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from contract.runner_process import VLLM_FOLDER, VLLM_PYTHON, printed_by

from wattdock.errors import Cause

pytestmark = pytest.mark.skipif(not VLLM_PYTHON.exists(), reason=f"no vLLM environment at {VLLM_PYTHON}")


@pytest.fixture(scope="module")
def in_engine(model_path: Path) -> dict[str, Any]:
    """Return what the script prints."""
    script = Path(__file__).with_name("in_engine.py")
    printed = printed_by(script, str(model_path), python=VLLM_PYTHON, folder=VLLM_FOLDER)
    answers: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return answers


def test_a_layer_that_does_not_tell_its_attention_leaves_it_unknown(in_engine: dict[str, Any]) -> None:
    """And nothing fails because of it."""
    assert in_engine["attention"] == [[["CPU_ATTN"]], [None]]


def test_where_compiled_code_lies_is_no_setting(in_engine: dict[str, Any]) -> None:
    """The first start compiles it into one folder, and later ones load it from another: nothing differs."""
    compiling, found = in_engine["settings"]
    assert "cudagraph_mode" in compiling["compilation_config"]
    assert compiling == found


def test_weights_count_in_the_type_in_which_they_lie_in_memory(in_engine: dict[str, Any]) -> None:
    """A thousand of 8 bits and a scale of 32 are 1,004 bytes more, as where vLLM quantised them."""
    before, after = in_engine["sizes"]
    assert after - before == 1004


def test_a_failed_pass_is_named_by_what_was_reported_during_it(in_engine: dict[str, Any]) -> None:
    """Whatever class vLLM raised; what was logged before has nothing to do with it, and the next pass is served."""
    died, failed = "a process of vLLM's engine died during the pass", "vLLM failed during the pass"
    reported = "first reported: RuntimeError: device-side assert"
    assert in_engine["passes"] == {
        "handled before": ["RuntimeError", f"{failed}: RuntimeError: a plain one"],
        "assertion, memory": ["OutOfMemory", "generating with 1 in flight: CUDA out of memory"],
        "assertion, other": ["RuntimeError", f"{failed}: AssertionError: no block; {reported}"],
        "assertion": ["RuntimeError", f"{failed}: AssertionError: no block"],
        "host memory": ["OutOfMemory", "generating with 1 in flight: MemoryError"],
        "afterwards": [],
        "death": ["EngineFailed", died],
        "death, other": ["EngineFailed", f"{died}; {reported}"],
    }


def test_a_process_that_did_not_start_is_a_worker_that_died(in_engine: dict[str, Any]) -> None:
    """The runner's log may then say why."""
    message = "a process of vLLM's engine did not start: RuntimeError: lost"
    assert in_engine["start"] == ["EngineFailed", message, Cause.WORKER]


def test_the_bare_loop_generates_the_runners_tokens(in_engine: dict[str, Any]) -> None:
    """Equal ids, and no step recorded."""
    (ids, to_end_ns), bare = in_engine["ways"]
    assert len({tuple(of_request) for of_request in ids}) == 5
    assert all(len(of_request) == 16 and len(set(of_request)) > 2 for of_request in ids)
    assert len(to_end_ns) > 16
    # What a bare pass knows of time is the end of its span.
    assert bare == [ids, [0]]
