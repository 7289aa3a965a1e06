"""Where a live engine runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from engines import one_cpu

SHOW = [sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))"]


def affinity_of_a_child() -> list[int]:
    return [int(word) for word in subprocess.run(SHOW, capture_output=True, text=True, check=True).stdout.split()]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU cannot be shared out")
def test_what_is_started_inside_has_a_cpu_that_the_rest_leaves() -> None:
    """In a thread of its own, which the change of affinity ends with."""
    seen: dict[str, list[int]] = {}

    def work() -> None:
        with one_cpu():
            seen["inside"] = affinity_of_a_child()
        seen["after"] = affinity_of_a_child()

    all_cpus = affinity_of_a_child()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen["inside"] == all_cpus[-1:]
    assert seen["after"] == all_cpus[:-1]
    assert affinity_of_a_child() == all_cpus
