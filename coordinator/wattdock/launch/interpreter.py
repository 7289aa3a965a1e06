"""The Python interpreter that a user named, found and tried. Must not know: backends' packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError, PreflightError
from wattdock.files import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_PYTHON = (3, 10)
CHECK_TIMEOUT_S = 60
# Any program may end with code 0; only a Python that got to the end prints this.
SUITABLE = "wattdock: suitable"
CHECK = f"""
import sys
if sys.version_info < {MIN_PYTHON}:
    sys.exit("is Python " + sys.version.split()[0] + ", {".".join(map(str, MIN_PYTHON))} or later is needed")
import grpc, google.protobuf
print("{SUITABLE}")
"""


def find_python(python: str | Path) -> Path:
    """Return the absolute path of an interpreter that the user named; executes nothing.

    Raises:
        ConfigError: There is no such file.
        PreflightError: The file cannot be executed.
    """
    advice = "name a Python interpreter by path, or leave it out"
    if executable := shutil.which(expanded(python)):
        return Path(executable).absolute()
    if Path(python).exists():
        raise PreflightError(f"runner_python: {python} cannot be executed", advice)
    raise ConfigError(f"runner_python: {python} is not there", advice)


def check_python(path: Path, variables: Mapping[str, str]) -> None:
    """Try whether the interpreter at `path` can run a runner.

    Whether it has the backend's own packages, the runner finds out.

    Args:
        variables: The environment of the trial: a runner's.

    Raises:
        PreflightError: The interpreter does not run, is older than 3.10, or lacks grpcio or protobuf.
    """
    if path == Path(sys.executable):
        # The coordinator's own interpreter, which is recent enough and has both packages.
        return
    try:
        done = subprocess.run(
            [path, "-c", CHECK],
            env=variables,
            # With -c, Python would import from the working folder too.
            cwd=os.sep,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PreflightError(f"runner_python: {path} does not run: {error}") from error
    if done.returncode != 0 or SUITABLE not in done.stdout:
        reason = (done.stderr.strip().splitlines() or ["is not a Python interpreter"])[-1]
        raise PreflightError(f"runner_python: {path} {reason}", "name a Python interpreter, or leave it out")
