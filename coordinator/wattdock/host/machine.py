"""CPU, memory and kernel of this machine, and the commit of the wattdock that runs on it."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.files import JOURNAL, STUDIES
from wattdock.host.processes import child_environment

if TYPE_CHECKING:
    from collections.abc import Iterable

CPUINFO = Path("/proc/cpuinfo")
CHECKOUT = Path(__file__).resolve().parents[3]
LIMIT_S = 10
# The variable with the commit that an image of the coordinator was built from, which has no checkout.
IMAGE_REVISION = "WATTDOCK_REVISION"
CODE_FOLDERS = ("coordinator/", "docker/", "proto/", "runners/")
UNTRACKED = "?? "
# How git's entry of a submodule begins, before its commit.
SUBMODULE = "160000 commit "


@dataclass(frozen=True)
class Checkout:
    """Files of a commit, and which of them are not as there.

    Attributes:
        commit: None outside of a checkout, or where git does not answer.
        changes: Files that were changed, deleted or added since, and folders of nothing but new files, which end with
            "/"; files that git ignores are none, nor are results that wattdock wrote.
    """

    commit: str | None = None
    changes: tuple[str, ...] = ()

    @property
    def revision(self) -> str | None:
        """The commit, "-dirty" behind it where files differ."""
        return self.commit and self.commit + ("-dirty" if self.changes else "")


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

    @classmethod
    def here(cls) -> Machine:
        """Return a description of this machine."""
        own = own_checkout()
        lines = CPUINFO.read_text().splitlines() if os.access(CPUINFO, os.R_OK) else []
        return cls(
            cpu_model=next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None),
            cpu_count=cls.usable_cpus(),
            memory_total_bytes=cls.total_memory_bytes(),
            kernel=f"{platform.system()} {platform.release()}",
            wattdock_commit=own.commit,
            wattdock_dirty=bool(own.changes) if own.commit else None,
        )

    @staticmethod
    def checkout(folder: Path | None = None, *words: str) -> Checkout:
        """Return the checkout that a folder lies in, in which every new file counts; None is wattdock's own.

        Args:
            words: Of a command that runs there; files that they name count wherever they lie, if git ignores them, too.
        """
        if folder is None:
            return own_checkout()
        folder = folder.resolve()
        root = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)
        files = [folder / name for name in Machine.named_files(folder, words)]
        named = {place for file in files for place in (file.parent.resolve() / file.name, file.resolve())}
        found = checkout(root, named=tuple(sorted(named)))
        strange = (
            str(file) for file in sorted(named) if not file.is_relative_to(root) and not os.access(file, os.X_OK)
        )
        return Checkout(found.commit, (*found.changes, *strange)) if found.commit else found

    @staticmethod
    def named_files(folder: Path, words: Iterable[str]) -> list[str]:
        """Return the files that a command's words name in its folder: as a word, or as what follows "=" in it."""
        names = [name for word in words for name in (word, *word.split("=", 1)[1:])]
        return [name for name in dict.fromkeys(names) if os.path.isfile(folder / name)]  # noqa: PTH113  (of any length)

    @staticmethod
    def usable_cpus() -> int:
        """Return how many CPUs this process may run on."""
        return len(os.sched_getaffinity(0))

    @staticmethod
    def total_memory_bytes() -> int | None:
        """Return how much memory the machine has; None where the kernel does not tell."""
        size_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return size_bytes if size_bytes > 0 else None


def checkout(folder: Path, code: tuple[str, ...] = ("",), *, named: tuple[Path, ...] = ()) -> Checkout:
    """Return the checkout whose root a folder is; of no commit where it is none, or without git.

    Args:
        code: Beginnings of the names of new files that count; changed files count wherever they lie.
        named: Files that count where they lie in it, if git ignores them, too.
    """
    if not (folder / ".git").exists():
        return Checkout()
    # Somebody else's checkout, as of an administrator who installed it, is refused by git unless named. Its settings
    # are not to start programs.
    ask = ["git", "-c", f"safe.directory={folder}", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"]
    ask += ["-C", str(folder)]
    inside = {str(file.relative_to(folder)): file for file in named if file.is_relative_to(folder)}
    try:
        commit = _answer([*ask, "rev-parse", "--verify", "HEAD"])
        links = [
            entry for entry in _answer([*ask, "ls-tree", "-rz", "HEAD"]).split("\0") if entry.startswith(SUBMODULE)
        ]
        # Entries, two letters and a name, end with a null byte, and none is quoted.
        how = ["--porcelain", "-z", "--ignore-submodules", "--no-renames"]
        entries = _answer([*ask, "--no-optional-locks", "status", *how]).split("\0")[:-1]
        tracked = _answer([*ask, "--literal-pathspecs", "ls-files", "-z", "--", *inside]).split("\0") if inside else []
    except (OSError, subprocess.SubprocessError):
        return Checkout()
    changed = [entry[3:] for entry in entries if not entry.startswith(UNTRACKED)]
    new = [entry[3:] for entry in entries if entry.startswith(UNTRACKED) and entry[3:].startswith(code)]
    results = f"{STUDIES}/*/{JOURNAL}"
    changed += [name for name in new if not any((folder / name).glob(results))]
    submodules = {f"{name}/": has for has, name in (link.removeprefix(SUBMODULE).split("\t", 1) for link in links)}
    for name, has in submodules.items():
        changed += _changes_of_submodule(folder / name, name, has, named)
    elsewhere = (*changed, *submodules)
    changed += [name for name in inside if name not in tracked and not name.startswith(elsewhere)]
    return Checkout(commit.strip(), tuple(changed))


def _changes_of_submodule(folder: Path, name: str, commit: str, named: tuple[Path, ...]) -> list[str]:
    """Return what in a submodule is not of its commit; git's own look into it would obey its settings."""
    found = checkout(folder, named=named)
    if found.commit != commit:
        is_left_out = found.commit is None and not (folder.is_dir() and any(folder.iterdir()))
        return [] if is_left_out else [name]
    return [name + change for change in found.changes]


@cache
def own_checkout() -> Checkout:
    """Return wattdock's own checkout, read once, as is the code itself; of an image, what it was built from.

    Studies, reports and bundles that are kept beside it change nothing that measures.
    """
    revision = os.environ.get(IMAGE_REVISION, "unknown")
    if (CHECKOUT / ".git").exists() or revision == "unknown":
        return checkout(CHECKOUT, CODE_FOLDERS)
    return Checkout(revision.removesuffix("-dirty"), ("the image's sources",) * revision.endswith("-dirty"))


def _answer(words: list[str]) -> str:
    environ = child_environment(os.environ) | {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(
        words, env=environ, cwd=os.sep, capture_output=True, text=True, check=True, timeout=LIMIT_S
    ).stdout
