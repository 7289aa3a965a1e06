"""Processes of several real users that take leases."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from seams.host import HeldLeases, LeaseRequest, hold
from unprivileged import UID, alone, popen_as_user

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

OTHER_UID = UID + 1
SEVERAL_USERS = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")
# Holds leases until it is killed, or says why it has none.
HOLD = f"""{alone("host")}
import time
from pathlib import Path
from wattdock.errors import PreflightError
from wattdock.host.leases import LeaseRequest, hold, holders, ready_folder
folder = Path(sys.argv[1])
try:
    with hold(LeaseRequest(tuple(sys.argv[3:]), sys.argv[2]), lambda line: None, ready_folder(folder)):
        print("held", flush=True)
        time.sleep(60)
except PreflightError as error:
    print(error, flush=True)
    print(holders(folder))
"""


def start(
    folder: Path,
    *command: str,
    uid: int = UID,
    namespace: Sequence[str] = (),
    within: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a Python program of another user; a command that makes a namespace is root's if it is given as `within`."""
    home = folder.parent
    process: subprocess.Popen[str] = popen_as_user(
        [*namespace, sys.executable, "-c", *command],
        env={"HOME": str(home), **(env or {})},
        cwd=home,
        uid=uid,
        within=within,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process


def said(process: subprocess.Popen[str]) -> str:
    """Everything that a program says until it ends."""
    return process.communicate(timeout=240)[0]


def stranger(folder: Path, program: str) -> None:
    """Let another user run a program in the folder, as far as it gets."""
    said(start(folder, f"import os\nos.chdir({str(folder)!r})\n{program}", uid=OTHER_UID))


def ours(folder: Path, *names: str, exclusive: str = "gpus", wait_s: float = 0) -> AbstractContextManager[HeldLeases]:
    return hold(LeaseRequest(names, exclusive, wait_s), lambda line: None, folder)  # type: ignore[arg-type]
