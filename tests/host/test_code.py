"""Which commit measured, where that can be known."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from wattdock.host.code import checkout

if TYPE_CHECKING:
    from pathlib import Path

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C")


def test_a_checkout_has_its_commit_and_says_whether_it_was_changed(tmp_path: Path) -> None:
    """A file that git does not know counts as a change."""
    for words in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run([*GIT, str(tmp_path), *words], check=True)
    checkout.cache_clear()
    clean = checkout(tmp_path)
    (tmp_path / "new.py").touch()
    checkout.cache_clear()
    changed = checkout(tmp_path)
    assert clean
    assert changed
    assert (len(clean.commit), clean.dirty, changed.dirty) == (40, False, True)
    assert clean.commit == changed.commit


def test_an_installed_package_has_no_commit(tmp_path: Path) -> None:
    """Nor does the checkout that it may lie in by chance count as ours."""
    assert checkout(tmp_path) is None
