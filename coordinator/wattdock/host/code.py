"""Which code this is: the commit it was checked out from, and whether it was changed since.

A file that git knows and that was changed counts, wherever it lies; a new one counts where code lies only: studies,
reports and bundles that somebody keeps in the checkout change nothing that measures.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
LIMIT_S = 10
CODE_FOLDERS = ("coordinator/", "docker/", "proto/", "runners/")
UNTRACKED = "?? "


@dataclass(frozen=True)
class Checkout:
    """A git checkout.

    Attributes:
        dirty: Files of the commit were changed, or there are new ones in `CODE_FOLDERS`.
    """

    commit: str
    dirty: bool


@cache
def checkout(folder: Path = CHECKOUT) -> Checkout | None:
    """Return the state of `folder` when first asked; None where it is no checkout, or git is not there to ask."""
    if not (folder / ".git").exists():
        return None
    # Somebody else's checkout, as of an administrator who installed it, is refused by git unless named.
    ask = ["git", "-c", f"safe.directory={folder}", "-C", str(folder)]
    try:
        commit = _answer([*ask, "rev-parse", "--verify", "HEAD"])
        # Entries end with a null byte, and none is quoted.
        status = _answer([*ask, "--no-optional-locks", "status", "--porcelain", "-z"])
        return Checkout(commit.strip(), any(map(_counts, filter(None, status.split("\0")))))
    except (OSError, subprocess.SubprocessError):
        return None


def _counts(entry: str) -> bool:
    return not entry.startswith(UNTRACKED) or entry.removeprefix(UNTRACKED).startswith(CODE_FOLDERS)


def _answer(words: list[str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout
