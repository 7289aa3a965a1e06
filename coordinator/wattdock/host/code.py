"""Which code this is: the commit it was checked out from, and whether it was changed since."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
LIMIT_S = 10


@dataclass(frozen=True)
class Checkout:
    """A git checkout.

    Attributes:
        dirty: Its files differ from the commit's.
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
        return Checkout(commit.strip(), bool(_answer([*ask, "--no-optional-locks", "status", "--porcelain"]).strip()))
    except (OSError, subprocess.SubprocessError):
        return None


def _answer(words: list[str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout
