"""How a backend's runners are started: what each launcher's file decides, and what opens the launcher.

Must not know: any launcher's file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.host import folders
from wattdock.launch.container import BYTES_PER_GB
from wattdock.launch.keeper import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from wattdock.config import ContainerSpec
    from wattdock.launch.engine import Image
    from wattdock.launch.images.lock import Pin
    from wattdock.launch.packages import PackageLock
    from wattdock.launch.protocol import Launcher


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

    def launcher(self, *, on_gpu: bool, say: Callable[[str], None]) -> AbstractContextManager[Launcher]:
        """Return a block that yields the launcher; what it needs is made first, and not made anew meanwhile.

        Raises:
            PreflightError, LaunchError: The environment cannot be made, or others can change what engines compile.
        """
        assert self.opened is not None
        folders.make_own(folders.engine_cache(folders.wattdock_home()))
        return self.opened(self, on_gpu=on_gpu, say=say)
