"""The few lines in which a terminal shows the pass that is under way. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from wattdock.output import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.study import RunState

BLOCKS = "▁▂▃▄▅▆▇█"
# Of the latest heartbeats, a block each; GPUs with a line of their own; of a UUID.
MOST_BLOCKS, MOST_GPUS, UUID_CHARACTERS = 40, 8, 12
STAGE_CHARACTERS = 20


def panel(state: RunState, figures: str) -> Table:
    """Return the pass and its progress, a line of what it has done so far, and power over time of each GPU in use."""
    lines = Table.grid(padding=(0, 1))
    lines.add_column(max_width=STAGE_CHARACTERS, no_wrap=True, overflow="ellipsis")
    lines.add_row(Text(one_line(state.stage)), *_progress(state))
    rest = Table.grid()
    rest.add_row(lines)
    rest.add_row(Text(figures, no_wrap=True, overflow="ellipsis"))
    for uuid in state.gpus[:MOST_GPUS]:
        watts = [beat.get(uuid) for _, beat in [*state.beats][-MOST_BLOCKS:]]
        if known := [value for value in watts if value is not None]:
            rest.add_row(Text(f"{one_line(uuid[:UUID_CHARACTERS])} {sparkline(known)} {known[-1]:.0f} W", no_wrap=True))
    return rest


def sparkline(values: Sequence[float]) -> str:
    """Return a block for each value, from 0 to the largest."""
    most = max(values) or 1.0
    return "".join(BLOCKS[min(len(BLOCKS) - 1, max(0, int(value / most * len(BLOCKS))))] for value in values)


def _progress(state: RunState) -> tuple[ProgressBar | Text, Text]:
    if state.share is None:
        return Text(""), Text("")
    left = "" if state.left_s is None else f", {state.left_s:.0f} s left" if state.left_s else ", last requests"
    bar = ProgressBar(total=1, completed=state.share, width=30, complete_style="blue", finished_style="blue")
    return bar, Text(f"{state.share:.0%}{left}")
