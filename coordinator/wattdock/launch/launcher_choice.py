"""How a backend's runners are started: what each launcher's file decides, and what opens the launcher.

Must not know: any launcher's file.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.host import folders
from wattdock.launch.container import BYTES_PER_GB
from wattdock.launch.environment import Environment
from wattdock.launch.keeper import memory_bytes, memory_groups
from wattdock.launch.runners import check_python, process_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from wattdock.config import ContainerSpec
    from wattdock.launch.engine import Image
    from wattdock.launch.images.lock import Pin
    from wattdock.launch.packages import PackageLock
    from wattdock.launch.protocol import Launcher

# The file in which a control group counts processes killed for lack of memory, by controller: version 2 and version 1.
COUNTS = {"": "memory.events.local", "memory": "memory.oom_control"}


class OomKills:
    """The processes killed for lack of memory since it was made: of a control group, or of the machine with others'.

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


@dataclass(frozen=True)
class LauncherChoice:
    """How a backend's runners are started, and why.

    Attributes:
        name: Name of the launcher and its file: "process", "docker", "apptainer".
        change: What a user would do to get containers; empty for containers.
        image: The image that containers are started from; None for processes.
        pin: By what the image was pinned; None for an image that was looked up by its name.
        runner_dir: The folder with the backend's code; None for a command of the user's own.
        packages: What the packages of processes are locked by; None where nothing was asked of them.
        python: The interpreter that the user named; None for the backend's own environment.
        cache: Folder for what engines in containers compile: one per image, and for a model's own code one of its own.
        limits: What a container may use, its memory decided; None for runners that share this process's limits.
        variables: Engine settings that a runner inherits from this process's environment, without secrets.
        opened: The function `launcher` of the launcher's file; None for a choice that only describes.
    """

    name: str
    reason: str
    change: str = ""
    image: Image | None = None
    pin: Pin | None = None
    packages: PackageLock | None = None
    runner_dir: Path | None = None
    python: Path | None = None
    cache: Path = Path()
    limits: ContainerSpec | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    opened: Callable[..., AbstractContextManager[Launcher]] | None = field(default=None, repr=False, compare=False)

    @property
    def memory_left_bytes(self) -> float:
        """What its runners can still take of the host's memory; infinite where nothing tells."""
        _, left_bytes = memory_bytes()
        limit_gb = self.limits.memory_gb if self.limits else None
        return left_bytes if limit_gb is None else min(left_bytes, limit_gb * BYTES_PER_GB)

    def oom_kills(self) -> OomKills:
        """Count from now on whom the kernel kills for lack of memory: of this process's control group, where its
        runners share it, else of the whole machine, as an engine has groups of its own for containers.
        """
        return OomKills(in_group=self.limits is None)

    @contextmanager
    def launcher(self, *, on_gpu: bool, say: Callable[[str], None]) -> Iterator[Launcher]:
        """Yield the launcher; the environment that it needs is made first, and not made anew meanwhile.

        Raises:
            PreflightError, LaunchError: The environment cannot be made, or others can change what engines compile.
        """
        assert self.opened is not None
        folders.make_own(folders.engine_cache(folders.wattdock_home()))
        with self.opened(self, on_gpu=on_gpu, say=say) as launcher:
            yield launcher

    def check(self) -> None:
        """Try the interpreter that the user named, if any: the first that is executed of what a study's file names.

        Raises:
            PreflightError: It cannot run a runner.
        """
        if self.python and self.runner_dir:
            variables = process_variables(self.runner_dir, (), os.environ, keep_pythonpath=True)
            check_python(self.python, variables)

    def interpreter(self, *, on_gpu: bool, say: Callable[[str], None]) -> AbstractContextManager[Path | None]:
        """Return a block that yields the interpreter of runners that are processes, its packages checked if locked.

        A command of the user's own has none.
        """
        if self.python or self.runner_dir is None:
            return nullcontext(self.python)
        return Environment(self.runner_dir, "cuda" if on_gpu else "cpu", say, self.packages).in_use()
