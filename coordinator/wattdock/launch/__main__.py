"""Make backends' environments ahead of their first use: `python -m wattdock.launch pytorch`."""

from __future__ import annotations

import sys
from functools import partial

from wattdock.errors import WattdockError
from wattdock.host import GpuInventory
from wattdock.launch.environment import Environment, Variant
from wattdock.launch.runners import find_runner
from wattdock.output import say


def main() -> int:
    """Make the environments of the backends named on the command line."""
    try:
        variant: Variant = "cuda" if GpuInventory.here().gpus else "cpu"
        for backend in sys.argv[1:]:
            Environment(find_runner(backend), variant, partial(say, err=True)).ensure()
    except WattdockError as error:
        say(f"wattdock: {error}", err=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
