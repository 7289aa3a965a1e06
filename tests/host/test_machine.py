"""What is known of a machine: the commit that measures, the peaks of GPU models, and folders to write to."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from seams.host import CODE_FOLDERS, checkout, peak_of, why_no_peak

from wattdock.host import Machine

if TYPE_CHECKING:
    from pathlib import Path

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C")


def test_a_checkout_has_its_commit_and_says_whether_its_code_was_changed(tmp_path: Path) -> None:
    """A changed file and a new one where code lies count; a study written beside them, as in the tutorial, does not."""
    (tmp_path / "README.md").touch()
    (tmp_path / "runners").mkdir()
    for words in (("init", "-q"), ("add", "README.md"), ("commit", "-q", "-m", "first")):
        subprocess.run([*GIT, str(tmp_path), *words], check=True)
    commit, changes = checkout_again(tmp_path)
    assert (len(commit or ""), changes) == (40, ())
    for own in ("first.yaml", "first.tar", "runners.yaml"):
        (tmp_path / own).touch()
    assert checkout_again(tmp_path) == (commit, ())
    new = tmp_path / "runners" / "ünique name.py"
    new.touch()
    assert checkout_again(tmp_path) == (commit, ("runners/",))
    (tmp_path / "README.md").write_text("changed")
    assert checkout_again(tmp_path) == (commit, ("README.md", "runners/"))
    new.unlink()
    subprocess.run([*GIT, str(tmp_path), "mv", "README.md", "READ.md"], check=True)
    assert checkout_again(tmp_path) == (commit, ("READ.md", "README.md"))
    (tmp_path / "runners.yaml").rename(tmp_path / "runners" / "train.py")
    assert Machine.checkout(tmp_path / "runners").changes[2:] == ("first.tar", "first.yaml", "runners/")


def checkout_again(folder: Path) -> tuple[str | None, tuple[str, ...]]:
    """Return the state of wattdock's own folder as a new process sees it."""
    checkout.cache_clear()
    found = checkout(folder, CODE_FOLDERS)
    return found.commit, found.changes


def test_an_installed_package_has_no_commit(tmp_path: Path) -> None:
    """Nor does the checkout that it may lie in by chance count as ours."""
    assert checkout(tmp_path).revision is None


def test_peaks_of_several_gpus_add_up_and_what_nobody_has_read_in_a_source_makes_them_unknown() -> None:
    """Half a peak would double the share; a figure from memory must not make a check pass, and says why it does not."""
    two = peak_of(["NVIDIA H200", "NVIDIA H200"])
    assert two is not None
    assert two.memory_bytes_per_s == pytest.approx(9.6e12)
    assert [peak_of(names) for names in ([], ["NVIDIA H200", "NVIDIA GeForce"], ["NVIDIA H200 NVL"])] == [None] * 3
    assert why_no_peak(["NVIDIA H200", "NVIDIA H200 NVL"]) == "the peak of NVIDIA H200 NVL in gpus.yaml is not verified"
    assert why_no_peak(["NVIDIA H200"]) is None
