"""What the audit looks at of every restart's surroundings: in the worst of those with passes. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class WorstRestart:
    """What holds of every restart with passes: in the worst of them, by GPU.

    Attributes:
        process_lists: How often processes were listed.
        runner_lists: How many of these lists show the runner.
        unlisted_ends: Ends of passes, their begins too, with no list near that shows the runner.
        foreign_bytes: Most memory in use at any instant of a pass beyond what the lists at its ends say the runner
            holds; None where one of the two is unknown.
        counter_changes: How often the energy counter was seen to change.
        runners: How many runners had passes of the same restart: more than one where it was interrupted and resumed.
        above_idle_w: By how much a GPU that was not used drew more in its worst pass than before the runner started,
            W; None where one of the two is unknown.
    """

    process_lists: Mapping[str, int] = field(default_factory=dict)
    runner_lists: Mapping[str, int] = field(default_factory=dict)
    unlisted_ends: Mapping[str, int] = field(default_factory=dict)
    foreign_bytes: Mapping[str, float | None] = field(default_factory=dict)
    counter_changes: Mapping[str, int] = field(default_factory=dict)
    runners: int = 1
    above_idle_w: Mapping[str, float | None] = field(default_factory=dict)
