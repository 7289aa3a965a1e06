"""How many processes the kernel kills for lack of memory."""

from __future__ import annotations

from pathlib import Path

from wattdock.launch.keeper import memory_groups

# What a control group counts them in, by controller: version 2 and version 1.
COUNTS = {"": "memory.events.local", "memory": "memory.oom_control"}


class OomKills:
    """The number of them since it was made: of a control group, or of the whole machine with other people's.

    Source: proc(5), Linux's cgroup-v1/memory and cgroup-v2. A group also counts what it lost to others' use of memory.

    Args:
        in_group: Count the group that this process's memory is charged to, and its child processes', if the kernel
            tells of it; else the machine.
        root: The folder with proc and sys.
    """

    def __init__(self, *, in_group: bool, root: Path = Path("/")) -> None:
        groups = memory_groups(root) if in_group else ()
        files = (folder / COUNTS[controller] for controller, folders in groups for folder in folders)
        self._file = next((file for file in files if count(file) is not None), root / "proc/vmstat")
        self._before = count(self._file) or 0

    def since(self) -> int:
        """Return how many were killed since then; 0 where the kernel hides it."""
        return max((count(self._file) or 0) - self._before, 0)


def count(file: Path) -> int | None:
    """Return the number that a file gives as `oom_kill`; None where it gives none."""
    try:
        fields = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    return next((int(value) for name, value in fields if name == "oom_kill"), None)
