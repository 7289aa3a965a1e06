"""Make backends' environments ahead of their first use: `python -m wattdock.launch pytorch`."""

from __future__ import annotations

import sys

from wattdock.errors import WattdockError
from wattdock.host import GpuInventory
from wattdock.launch.environment import Environment
from wattdock.launch.runners import find_runner
from wattdock.output import say


def main() -> int:
    """Make the environments of the backends named on the command line."""
    try:
        for backend in sys.argv[1:]:
            Environment(find_runner(backend), "cuda" if GpuInventory.here().gpus else "cpu", _say).ensure()
    except WattdockError as error:
        _say(f"wattdock: {error}")
        return error.exit_code
    return 0


def _say(line: str) -> None:
    say(line, err=True)


if __name__ == "__main__":
    sys.exit(main())
