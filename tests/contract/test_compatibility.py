"""Generated code and shared runner work on the oldest and the newest grpcio and protobuf that backends carry."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import FAKE_FOLDER, ids_prompt, running, workload
from seams.launch import failure, uv_call

from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

OLDEST = ("grpcio==1.62.3", "protobuf==4.25.8")
NEWEST = ("grpcio", "protobuf")


def oldest_interpreter() -> str:
    """Return Python 3.10 where one runs, else this interpreter."""
    python310 = shutil.which("python3.10")
    # Version managers put stand-ins on PATH for interpreters that are not switched on.
    runs = python310 and subprocess.run([python310, "-c", ""], capture_output=True, check=False).returncode == 0
    return python310 if python310 and runs else sys.executable


def python_for(folder: Path, interpreter: str, packages: tuple[str, ...]) -> Path:
    """Return the interpreter of a new environment with `packages`; skip where they cannot be fetched."""
    python = folder / "bin/python"
    for words in (
        ("venv", "--quiet", "--python", interpreter, str(folder)),
        ("pip", "install", "--quiet", "--python", str(python), *packages),
    ):
        # The first index to have a package may not have such an old one.
        command, environ = uv_call(words, {"UV_INDEX_STRATEGY": "unsafe-best-match", **os.environ})
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"uv cannot fetch {packages}: {failure(done.stderr.splitlines())}")
    return python


@pytest.mark.parametrize("packages", [OLDEST, NEWEST], ids=["oldest", "newest"])
def test_describe_load_and_generate_round_trip(tmp_path: Path, model_path: Path, packages: tuple[str, ...]) -> None:
    """This environment's client speaks to a runner on other versions; the oldest on Python 3.10 where there is one."""
    interpreter = oldest_interpreter() if packages is OLDEST else sys.executable
    python = python_for(tmp_path / "env", interpreter, packages)
    with running("fake", FAKE_FOLDER, python) as runner:
        versions = runner.stub.Describe(pb.DescribeRequest()).package_versions
        pinned = dict(package.split("==") for package in packages if "==" in package)
        assert versions.items() >= pinned.items()
        runner.load(model_path)
        assert runner.generate(workload(), [ids_prompt(3)]).summary.output_tokens == 5
