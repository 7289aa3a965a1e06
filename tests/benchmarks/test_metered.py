"""What the benchmark says of the meter's threads must be theirs, and nothing of them may run in the other arm."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from metered import MeterCost, run_unmetered, something_to_meter, thread_cpu_s

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_only_the_metered_arm_has_sampling_threads_and_their_time_is_theirs(tmp_path: Path) -> None:
    """Another thread's work in the block is not pluralize, and none is left afterwards."""

    def work(heard: Callable[[object], None]) -> int:
        heard(None)
        until_s = time.process_time() + 0.3
        while time.process_time() < until_s:
            pass
        return len(thread_cpu_s())

    cost = MeterCost()
    with something_to_meter(tmp_path) as what:
        assert what is not None
        threads, none = cost.run_metered(work), run_unmetered(work)
    assert threads == cost.threads == len(cost.busy) > none == 0
    # The block itself took twice that much.
    assert 0 < cost.cpu_s < 0.15 < 0.29 < cost.metered_s
    assert all(0 < share < 1 for share in cost.busy)
    assert thread_cpu_s() == []
