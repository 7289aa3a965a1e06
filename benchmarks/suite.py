"""How long a developer waits for the tests."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

from overheads import Row, aim, callers_environ

from wattdock.errors import PreflightError
from wattdock.launch.runners import REPO

if TYPE_CHECKING:
    from collections.abc import Mapping

# Command → the most seconds that it should take on two cores. The environments are there.
AIMS_S: Mapping[str, float] = {"make test-quick": 60, "make test": 480, ".ci/run": 1200}


def suite() -> list[Row]:
    """Return the seconds that each command takes, and the load average before it.

    Raises:
        PreflightError: One fails.
    """
    rows = []
    for command, most_s in AIMS_S.items():
        load, began_s = os.getloadavg()[0], time.monotonic()
        if subprocess.run(command.split(), cwd=REPO, env=callers_environ(), check=False).returncode:
            raise PreflightError(f"{command} failed; mend it before it is timed")
        took_s = time.monotonic() - began_s
        rows.append(Row(command, f"{took_s:.0f} s", f"1 run, load average {load:.1f}", aim(most_s, "s", took_s)))
    return rows
