"""Make a backend's environment ahead of its first use: `python -m wattdock.launch pytorch`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from wattdock.errors import WattdockError
from wattdock.host import inventory
from wattdock.launch.environment import ensure_environment
from wattdock.launch.runners import find_runner

if TYPE_CHECKING:
    from wattdock.launch.environment import Variant


def main() -> int:
    """Make the environments of the backends named on the command line."""
    try:
        for backend in sys.argv[1:]:
            variant: Variant = "cuda" if inventory().gpus else "cpu"
            ensure_environment(find_runner(backend), variant=variant, progress=_say)
    except WattdockError as error:
        sys.stderr.write(f"wattdock: {error}\n")
        return error.exit_code
    return 0


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
