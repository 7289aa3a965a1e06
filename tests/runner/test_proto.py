"""The generated code is what the contract generates."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
GENERATED = ("runner_pb2.py", "runner_pb2.pyi", "runner_pb2_grpc.py")


@pytest.mark.slow
def test_make_proto_reproduces_the_checked_in_code(tmp_path: Path) -> None:
    """Nobody edited it, and nobody forgot to generate it again."""
    shutil.copytree(REPO / "proto", tmp_path / "proto", ignore=shutil.ignore_patterns("*_pb2*", "__pycache__"))
    shutil.copy(REPO / "Makefile", tmp_path)
    subprocess.run(["make", "proto"], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    here = Path("proto/wattdock_proto/v1")
    for name in GENERATED:
        assert (tmp_path / here / name).read_text() == (REPO / here / name).read_text(), f"run `make proto`: {name}"
