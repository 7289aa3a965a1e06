"""What is known of a machine: the commit that measures, the peaks of GPU models, and folders to write to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from seams.host import CODE_FOLDERS, checkout, peak_of, why_no_peak

from wattdock.host import Machine

REPO = Path(__file__).resolve().parents[2]
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C")


def test_a_checkout_has_its_commit_and_says_whether_its_code_was_changed(tmp_path: Path) -> None:
    """A changed file and a new one where code lies count; a study written beside them, as in the tutorial, does not."""
    (tmp_path / "README.md").touch()
    (tmp_path / "runners").mkdir()
    for words in (("init", "-q"), ("add", "README.md"), ("commit", "-q", "-m", "first")):
        subprocess.run([*GIT, str(tmp_path), *words], check=True)
    commit, changes = own_code(tmp_path)
    assert (len(commit or ""), changes) == (40, ())
    for own in ("first.yaml", "first.tar", "runners.yaml"):
        (tmp_path / own).touch()
    assert own_code(tmp_path) == (commit, ())
    new = tmp_path / "runners" / "ünique name.py"
    new.touch()
    assert own_code(tmp_path) == (commit, ("runners/",))
    (tmp_path / "README.md").write_text("changed")
    assert own_code(tmp_path) == (commit, ("README.md", "runners/"))
    new.unlink()
    subprocess.run([*GIT, str(tmp_path), "mv", "README.md", "READ.md"], check=True)
    assert own_code(tmp_path) == (commit, ("READ.md", "README.md"))
    (tmp_path / "runners.yaml").rename(tmp_path / "runners" / "train.py")
    assert Machine.checkout(tmp_path / "runners").changes[2:] == ("first.tar", "first.yaml", "runners/")


def own_code(folder: Path) -> tuple[str | None, tuple[str, ...]]:
    """Return the state of a folder in which new files count as in wattdock's own."""
    found = checkout(folder, CODE_FOLDERS)
    return found.commit, found.changes


def test_a_file_that_a_command_names_is_of_the_commit_only_where_git_has_it(tmp_path: Path) -> None:
    """What git ignores, also behind a link, and what lies outside is not; an interpreter may lie elsewhere."""
    folder = tmp_path / "checkout"
    (folder / "work").mkdir(parents=True)
    for name, text in {".gitignore": "ignored.py", "work/train.py": "", "work/ignored.py": "", "helper.py": ""}.items():
        (folder / name).write_text(text)
    (folder / "work/link.py").symlink_to("ignored.py")
    outside = tmp_path / "outside.py"
    outside.touch()
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run([*GIT, str(folder), *words], check=True)

    def changes(*words: str) -> tuple[str, ...]:
        return Machine.checkout(folder / "work", *words).changes

    assert changes(sys.executable, "train.py", "-c", "x" * 300, "../helper.py", str(tmp_path)) == ()
    assert changes("python", "ignored.py") == ("work/ignored.py",)
    assert changes("python", "link.py") == ("work/ignored.py",)
    assert changes("python", "train.py", "--config=ignored.py") == ("work/ignored.py",)
    assert changes("python", "train.py", f"data={outside}") == (str(outside),)
    assert changes("python", str(outside)) == (str(outside),)
    assert changes("python", "../../outside.py", "train.py") == (str(outside),)
    (folder / "work/new.py").touch()
    assert changes("python", "new.py") == ("work/new.py",)
    # What the script imports has no name among the words.
    (folder / "helper.py").write_text("changed")
    assert changes("python", "train.py") == ("helper.py", "work/new.py")


def test_a_submodules_code_is_of_the_commit_only_as_the_commit_has_it(tmp_path: Path) -> None:
    """Its changed, new, and named ignored files count, and another commit of it; one never fetched does not."""

    def git(folder: Path, *words: str) -> None:
        subprocess.run([*GIT, str(folder), "-c", "protocol.file.allow=always", *words], check=True, capture_output=True)

    for name in ("inner", "lib", "app"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.py").touch()
        (tmp_path / name / ".gitignore").write_text("own.py")
        git(tmp_path / name, "init", "-q")
        git(tmp_path / name, "add", ".")
        if name != "inner":
            git(tmp_path / name, "submodule", "add", "../inner" if name == "lib" else "../lib", "sub ünique")
        git(tmp_path / name, "commit", "-q", "-m", "first")
    app = tmp_path / "app"

    def changes(*words: str) -> tuple[str, ...]:
        found = Machine.checkout(app, *words)
        assert found.commit
        return found.changes

    sub = app / "sub ünique"
    assert changes("python", "sub ünique/net.py") == (), "the nested one was not fetched"
    git(app, "submodule", "update", "--init", "--recursive")
    inner = sub / "sub ünique"
    assert changes("python", "sub ünique/net.py", "sub ünique/sub ünique/net.py") == ()
    (inner / "own.py").touch()
    assert changes("python", "sub ünique/net.py") == ()
    assert changes("python", "sub ünique/sub ünique/own.py") == ("sub ünique/sub ünique/own.py",)
    (inner / "net.py").write_text("LAYERS=2")
    (sub / "new.py").touch()
    assert changes("python", "net.py") == ("sub ünique/new.py", "sub ünique/sub ünique/net.py")
    git(inner, "commit", "-qam", "second")
    assert changes() == ("sub ünique/new.py", "sub ünique/sub ünique/")
    shutil.rmtree(sub)
    sub.mkdir()
    assert changes() == ()
    (sub / "net.py").touch()
    assert changes("python", "sub ünique/net.py") == ("sub ünique/",)


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


@pytest.mark.parametrize(
    ("revision", "told"), [("c0ffee", "c0ffee False"), ("c0ffee-dirty", "c0ffee True"), ("unknown", "None None")]
)
def test_the_coordinators_image_knows_what_it_was_built_from(tmp_path: Path, revision: str, told: str) -> None:
    """It has no checkout; the build wrote the commit, and whether files differed, into its variable."""
    for package in ("coordinator", "proto"):
        shutil.copytree(REPO / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    ask = "from wattdock.host import Machine as M; print(M.here().wattdock_commit, M.here().wattdock_dirty)"
    variables = {"WATTDOCK_REVISION": revision, "PYTHONPATH": f"{tmp_path}/coordinator:{tmp_path}/proto"}
    command = [sys.executable, "-P", "-c", ask]
    seen = subprocess.run(command, env=os.environ | variables, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == told
