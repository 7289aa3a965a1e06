"""CPU, memory and kernel of this machine, and the commit of the wattdock that runs on it."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from wattdock.host.processes import child_environment

CPUINFO = Path("/proc/cpuinfo")
CHECKOUT = Path(__file__).resolve().parents[3]
LIMIT_S = 10
CODE_FOLDERS = ("coordinator/", "docker/", "proto/", "runners/")
UNTRACKED = "?? "


@dataclass(frozen=True)
class Machine:
    """Properties of this machine that do not change during a measurement; None where unknown.

    Attributes:
        wattdock_commit, wattdock_dirty: Of wattdock's own checkout, and whether its files differ from the commit's;
            None where wattdock is installed without a checkout.
    """

    cpu_model: str | None
    cpu_count: int
    memory_total_bytes: int | None
    kernel: str
    wattdock_commit: str | None = None
    wattdock_dirty: bool | None = None

    @property
    def revision(self) -> str | None:
        """The commit of wattdock's checkout, "-dirty" behind it where its files differ from that commit."""
        return self.wattdock_commit and self.wattdock_commit + ("-dirty" if self.wattdock_dirty else "")

    @classmethod
    def here(cls) -> Machine:
        """Return a description of this machine."""
        commit, is_dirty = checkout()
        lines = CPUINFO.read_text().splitlines() if os.access(CPUINFO, os.R_OK) else []
        return cls(
            cpu_model=next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None),
            cpu_count=len(os.sched_getaffinity(0)),
            memory_total_bytes=cls.total_memory_bytes(),
            kernel=f"{platform.system()} {platform.release()}",
            wattdock_commit=commit,
            wattdock_dirty=is_dirty,
        )

    @staticmethod
    def checkout(folder: Path) -> tuple[str | None, bool | None]:
        """Return the commit of the checkout that a folder lies in, and whether it has changes; None outside of one."""
        root = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), None)
        return checkout(root) if root else (None, None)

    @staticmethod
    def total_memory_bytes() -> int | None:
        """Return how much memory the machine has; None where the kernel does not tell."""
        size_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return size_bytes if size_bytes > 0 else None


@cache
def checkout(folder: Path = CHECKOUT) -> tuple[str | None, bool | None]:
    """Return the commit of a checkout, and whether its code differs from the commit's; both None without git.

    Changed files count wherever they lie, new files in `CODE_FOLDERS` only: studies, reports and bundles that are
    kept in the checkout change nothing that measures.
    """
    if not (folder / ".git").exists():
        return None, None
    # Somebody else's checkout, as of an administrator who installed it, is refused by git unless named. Its settings
    # are not to start programs.
    ask = ["git", "-c", f"safe.directory={folder}", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"]
    ask += ["-C", str(folder)]
    try:
        commit = _answer([*ask, "rev-parse", "--verify", "HEAD"])
        # Entries end with a null byte, and none is quoted.
        status = _answer([*ask, "--no-optional-locks", "status", "--porcelain", "-z", "--ignore-submodules"])
        entries = filter(None, status.split("\0"))
        return commit.strip(), any(
            not entry.startswith(UNTRACKED) or entry.removeprefix(UNTRACKED).startswith(CODE_FOLDERS)
            for entry in entries
        )
    except (OSError, subprocess.SubprocessError):
        return None, None


def _answer(words: list[str]) -> str:
    environ = child_environment(os.environ) | {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(
        words, env=environ, cwd=os.sep, capture_output=True, text=True, check=True, timeout=LIMIT_S
    ).stdout
