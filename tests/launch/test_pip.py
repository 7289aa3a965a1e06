"""What is made of pip's words, and how it is run."""

from __future__ import annotations

import os
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wattdock.errors import LaunchError
from wattdock.launch.pip import (
    Package,
    describe_sizes,
    failure,
    file_bytes,
    is_cpu_build,
    left_out,
    pin_lines,
    run_logged,
    summarise,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Until = Callable[..., None]


def package(name: str, version: str = "1", sha256: str | None = "ab") -> Package:
    return Package(name, version, f"https://host.example/{name}.whl", sha256)


@pytest.mark.parametrize(
    ("packages", "cpu"),
    [
        ([package("torch", "2.13.0+cpu"), package("nvidia-ml-py")], True),
        ([package("torch", "2.13.0"), package("sympy")], True),
        ([package("torch", "2.13.0"), package("nvidia-cublas")], False),
        ([package("torch", "2.13.0+cu130"), package("cuda-bindings")], False),
        ([package("grpcio"), package("nvidia-ml-py")], True),
        ([], True),
    ],
)
def test_a_cpu_build_says_so_or_asks_for_no_cuda(packages: list[Package], cpu: bool) -> None:
    """Some platforms' plain build is the CPU one."""
    assert is_cpu_build(packages) is cpu


def test_sizes_show_the_sum_the_largest_and_what_is_unknown() -> None:
    """A user decides by this line whether to wait."""
    sizes: dict[str, int | None] = {"torch": 900_000_000, "tiny": 10_000, "numpy": 200_000_000, "odd": None}
    assert describe_sizes(sizes) == (
        "4 packages, 1.1 GB to fetch and 1 of unknown size, less what pip has cached "
        "(largest: torch 900.0 MB, numpy 200.0 MB, tiny 0.0 MB)"
    )


def test_pins_hold_hashes_only_if_all_have_one() -> None:
    """pip refuses a file in which some have."""
    assert pin_lines([package("a"), package("b")]) == "a==1 --hash=sha256:ab\nb==1 --hash=sha256:ab\n"
    assert pin_lines([package("a"), package("b", sha256=None)]) == "a==1\nb==1\n"


def test_wheels_are_fetched_from_where_they_were_found_and_all_else_by_version() -> None:
    """An index is slow to read; a source archive at an address would be built."""
    known, unknown = package("a"), Package("b", "2", "", "cd")
    source = Package("c", "3", "https://host.example/c-3.tar.gz", "ef")
    assert pin_lines([known, unknown, source], by_address=True).splitlines() == [
        "a @ https://host.example/a.whl --hash=sha256:ab",
        "b==2 --hash=sha256:cd",
        "c==3 --hash=sha256:ef",
    ]


@pytest.mark.parametrize(
    ("line", "short"),
    [
        ("Downloading https://host.example/x/torch-2.whl (9 MB)", "fetching torch-2.whl (9 MB)"),
        ("Downloading torch-2.whl (1.2 GB)", "fetching torch-2.whl (1.2 GB)"),
        ("Downloading small-2.whl (9 kB)", None),
        ("Installing collected packages: a, b, c", "installing 3 packages"),
        ("Collecting torch==2", None),
        ("Looking in indexes: https://host.example/simple", None),
    ],
)
def test_only_steps_are_shown_and_no_host(line: str, short: str | None) -> None:
    """An index may be private."""
    assert summarise(line) == short


def test_a_failure_is_pips_last_error_without_addresses() -> None:
    """Notices often follow the line that matters."""
    lines = ["ERROR: first", "ERROR: no file at https://host.example/simple/x", "[notice] a new pip is there"]
    assert failure(lines) == "ERROR: no file at <address>"
    assert failure([]) == "it said nothing"


def test_a_size_that_cannot_be_told_is_unknown(tmp_path: Path) -> None:
    """Not zero."""
    (tmp_path / "a b.whl").write_bytes(b"12345")
    context = ssl.create_default_context()
    assert file_bytes((tmp_path / "a b.whl").as_uri(), context) == 5
    assert file_bytes((tmp_path / "absent.whl").as_uri(), context) is None
    assert file_bytes("http://127.0.0.1:9/x.whl", context) is None


def run(code: str, tmp_path: Path, on_line: Callable[[str], None] = lambda _: None) -> None:
    """Run a piece of Python as pip is run."""
    lock_fd = os.open(tmp_path, os.O_RDONLY)
    try:
        run_logged([sys.executable, "-c", code], log_path=tmp_path / "log", lock_fd=lock_fd, on_line=on_line)
    finally:
        os.close(lock_fd)


def test_its_temporary_files_go_with_it(tmp_path: Path) -> None:
    """A pip that is killed leaves gigabytes of them otherwise."""
    lines: list[str] = []
    run("import tempfile; print(tempfile.mkdtemp())", tmp_path, lines.append)
    assert Path(lines[0]).parent == tmp_path / "tmp"
    assert not (tmp_path / "tmp").exists()


def test_what_it_started_does_not_outlive_a_call_that_breaks_off(tmp_path: Path, until: Until) -> None:
    """pip starts compilers and other pips."""
    child = (
        "import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
    )
    code = f"{child} start_new_session=True).pid, flush=True); time.sleep(60)"
    pids: list[int] = []

    def break_off(line: str) -> None:
        pids.append(int(line))
        raise KeyError(line)

    with pytest.raises(KeyError):
        run(code, tmp_path, break_off)
    until(lambda: not Path(f"/proc/{pids[0]}").exists())


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('at work'); exit(3)", r"^at work \(all of it: \S+/log\)$"),
        ("import os; os.kill(os.getpid(), 9)", r"^it said nothing \(ended killed by SIGKILL.*; all of it: \S+/log\)$"),
    ],
)
def test_a_failure_says_more_where_it_did_not_end_by_itself(tmp_path: Path, code: str, said: str) -> None:
    """A pip that the kernel killed cannot say so itself."""
    with pytest.raises(LaunchError, match=said):
        run(code, tmp_path)


def test_what_a_file_is_installed_without_stands_in_its_comments() -> None:
    """pip itself reads past them; other comments mean nothing."""
    text = "# wattdock: without torchvision Torch_Audio\nvllm\n# without numpy\nleaf  # wattdock: without stem\n"
    assert left_out(text) == {"torchvision", "torch-audio"}
