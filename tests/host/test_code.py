"""Which commit measured, where that can be known."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

from wattdock.host.machine import Checkout, checkout

if TYPE_CHECKING:
    from pathlib import Path

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C")


def test_a_checkout_has_its_commit_and_says_whether_its_code_was_changed(tmp_path: Path) -> None:
    """A changed file and a new one where code lies count; a study written beside them, as in the tutorial, does not."""
    (tmp_path / "README.md").touch()
    (tmp_path / "runners").mkdir()
    for words in (("init", "-q"), ("add", "README.md"), ("commit", "-q", "-m", "first")):
        subprocess.run([*GIT, str(tmp_path), *words], check=True)
    clean = asked_anew(tmp_path)
    assert (len(clean.commit), clean.dirty) == (40, False)
    for own in ("first.yaml", "first.tar", "runners.yaml"):
        (tmp_path / own).touch()
    assert asked_anew(tmp_path) == clean
    new = tmp_path / "runners" / "ünique name.py"
    new.touch()
    assert asked_anew(tmp_path) == replace(clean, dirty=True)
    new.unlink()
    (tmp_path / "README.md").write_text("changed")
    assert asked_anew(tmp_path) == replace(clean, dirty=True)
    subprocess.run([*GIT, str(tmp_path), "mv", "README.md", "READ.md"], check=True)
    assert asked_anew(tmp_path) == replace(clean, dirty=True)


def asked_anew(folder: Path) -> Checkout:
    """Return the state of a folder as a new process sees it."""
    checkout.cache_clear()
    found = checkout(folder)
    assert found
    return found


def test_an_installed_package_has_no_commit(tmp_path: Path) -> None:
    """Nor does the checkout that it may lie in by chance count as ours."""
    assert checkout(tmp_path) is None
