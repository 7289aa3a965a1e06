"""A copy of a machine's folder, as a coordinator that is killed in the middle of a run leaves it behind."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from make.machine import VirtualMachine

    from wattdock.study import events


class Snapshot:
    """Copies a machine's folder when the n-th event of a kind comes: what a coordinator killed then leaves behind."""

    def __init__(self, machine: VirtualMachine, kind: type[events.Event], number: int, to: Path) -> None:
        self._machine, self._kind, self._left, self._to = machine, kind, number, to

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, self._kind):
            self._left -= 1
            if self._left == 0:
                shutil.copytree(self._machine.folder, self._to)
