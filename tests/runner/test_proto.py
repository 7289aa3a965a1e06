"""The generated code is what the contract generates."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
GENERATED = ("runner_pb2.py", "runner_pb2.pyi", "runner_pb2_grpc.py")


@pytest.mark.slow
def test_make_proto_reproduces_the_checked_in_code(tmp_path: Path) -> None:
    """Nobody edited it, and nobody forgot to generate it again."""
    subprocess.run(["make", "proto", f"PROTO_OUT={tmp_path}"], cwd=REPO, check=True, capture_output=True, timeout=300)
    for name in GENERATED:
        there, here = (folder / "wattdock_proto/v1" / name for folder in (tmp_path, REPO / "proto"))
        assert there.read_text() == here.read_text(), f"run `make proto`: {name}"
