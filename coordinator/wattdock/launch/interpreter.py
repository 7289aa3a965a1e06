"""Check an interpreter that the user named to run a backend.

Looks only for what every runner needs; whether the backend's own packages are there, the runner itself says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from wattdock.errors import PreflightError

MIN_PYTHON = (3, 10)
CHECK_TIMEOUT_S = 60
# Anything may end with code 0; only a Python that got to the end says this.
FITS = "wattdock: fits"
CHECK = f"""
import sys
if sys.version_info < {MIN_PYTHON}:
    sys.exit("is Python " + sys.version.split()[0] + ", {".".join(map(str, MIN_PYTHON))} or later is needed")
try:
    import grpc, google.protobuf
except ImportError as error:
    sys.exit("cannot import what every runner needs: " + str(error))
print("{FITS}")
"""


def check_python(python: str | Path) -> Path:
    """Return the absolute path of a named interpreter that can run a runner.

    It is tried with the caller's PYTHONPATH, which such a runner gets too.

    Raises:
        PreflightError: It is not there, cannot be executed, is older than 3.10, or lacks grpcio or protobuf.
    """
    found = shutil.which(python)
    if found is None:
        state = "cannot be executed" if Path(python).exists() else "is not there"
        raise PreflightError(f"runner_python: {python} {state}; name a Python interpreter by path, or leave it out")
    path = Path(found).absolute()
    if path == Path(sys.executable):
        # It runs us, who are of a later Python and need both packages.
        return path
    try:
        run = subprocess.run(
            [path, "-c", CHECK],
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
    if run.returncode != 0:
        reason = (run.stderr.strip().splitlines() or [f"ended with code {run.returncode}"])[-1]
        raise PreflightError(f"runner_python: {path} {reason}")
    if FITS not in run.stdout:
        raise PreflightError(f"runner_python: {path} is not a Python interpreter; name one, or leave it out")
    return path
