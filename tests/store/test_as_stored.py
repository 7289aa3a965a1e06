"""What is said of a result that is not as it was stored."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from make.stored import store_golden, stored

from wattdock.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Called

RESULTS = Path("results")
SAID = "result.json was changed since it was stored"


@pytest.fixture
def result(called: Called) -> Path:
    """A result as a run stores it."""
    return store_golden(RESULTS, "fake-full")[0]


def test_a_result_keeps_the_hashes_of_its_files(called: Called, result: Path) -> None:
    """As `sha256sum -c` reads them; a bundle of it holds them, and nothing is said."""
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=result, check=True)
    listed = {line.partition("  ")[2] for line in (result / "SHA256SUMS").read_text().splitlines()}
    files = {str(file.relative_to(result)) for file in result.rglob("*") if file.is_file()}
    assert files - listed == {"SHA256SUMS", "runner.log"}
    assert called("bundle", "create", result, "-o", "b.tar").returncode == 0
    for words in (f"show {result} --again", "show b.tar --again", "results list"):
        done = called(*words.split())
        assert (done.returncode, "changed" in done.stderr) == (0, False), done.stderr


def test_a_result_that_was_changed_is_shown_with_a_warning(called: Called, result: Path) -> None:
    """Its figures may be anybody's; a bundle of it would be published."""
    content = (result / "result.json").read_text()
    (result / "result.json").write_text(re.sub(r'"requests": (\d)', r'"requests": 1\1', content))
    for words in (f"show {result}", f"show {result} --again", "report results", "results list", "results list --again"):
        done = called(*words.split())
        assert (done.returncode, done.stderr.count(SAID)) == (0, 1), words
    refused = called("bundle", "create", result, "-o", "b.tar")
    assert (refused.returncode, SAID in refused.stderr, Path("b.tar").exists()) == (ExitCode.STORE, True, False)
    # What was meant, as a name that was made unreadable, is said by whoever did it.
    (result / "SHA256SUMS").unlink()
    assert called("bundle", "create", result, "-o", "b.tar").returncode == 0
    assert SAID not in called("show", "b.tar").stderr


@pytest.mark.parametrize("file", ["steps.parquet", "requests.parquet", "record.json"])
def test_records_of_another_restart_are_refused(called: Called, result: Path, file: str) -> None:
    """A folder that was synchronised by halves holds some; figures of phases would be made of them."""
    path = result / "restarts/0" / file
    path.write_bytes(path.read_bytes() + b"\n")
    for words in (f"show {result} --again", f"bundle create {result} -o b.tar"):
        done = called(*words.split())
        assert (done.returncode, f"{path} was changed since it was stored" in done.stderr) == (ExitCode.STORE, True)
    assert called("show", result).returncode == 0


def copied_restart(result: Path) -> str:
    shutil.copytree(result / "restarts/0", result / "restarts/7")
    return "restarts too many: 0"


def inner_folder(result: Path) -> str:
    shutil.copytree(result / "restarts/0", result / "restarts/0/0")
    return "restarts/0/0/record.json is no file of this result"


def inner_result(result: Path) -> str:
    shutil.copytree(result, result / "other")
    return "other/result.json is no file of this result"


@pytest.mark.parametrize("spoil", [copied_restart, inner_folder, inner_result])
def test_what_was_copied_into_a_result_is_not_bundled(called: Called, spoil: Callable[[Path], str]) -> None:
    """It is of no figure of the result, and would pass for its evidence; whether hashes were stored or not."""
    result = stored(RESULTS)
    said = spoil(result)
    refused = called("bundle", "create", result, "-o", "b.tar")
    assert (refused.returncode, said in refused.stderr, Path("b.tar").exists()) == (ExitCode.STORE, True, False)
    assert len(refused.stderr.splitlines()) == 1
