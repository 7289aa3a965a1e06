"""What the benchmark says of the meter's threads must be theirs, and nothing of them may run in the other arm."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from metered import MeterCost, run_unmetered, something_to_meter, thread_cpu_s

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# CPU time of a block.
WORK_S = 0.3


def test_only_the_metered_arm_has_sampling_threads_and_their_time_is_theirs(tmp_path: Path) -> None:
    """Another thread's work in the block is not theirs, and none is left afterwards."""

    def work(heard: Callable[[object], bool]) -> int:
        heard(None)
        until_s = time.thread_time() + WORK_S
        while time.thread_time() < until_s:
            pass
        return len(thread_cpu_s())

    cost = MeterCost()
    with something_to_meter(tmp_path) as what:
        assert what is not None
        began_s = time.process_time()
        threads = cost.run_metered(work)
        cpu_s = time.process_time() - began_s
        none = run_unmetered(work)
    assert threads == cost.threads == len(cost.busy) > none == 0
    assert 0 < cost.cpu_s < cpu_s - WORK_S
    assert cost.metered_s >= WORK_S
    assert all(0 < share < 1 for share in cost.busy)
    assert thread_cpu_s() == []
