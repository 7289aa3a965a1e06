"""Show a host's GPUs, once or again and again."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress

from rich.live import Live

from wattdock.errors import PreflightError
from wattdock.host import inventory, leases
from wattdock.reports.gpus import GpuView, as_json, as_tables
from wattdock.reports.terminal import console
from wattdock.text import print_json

WATCH_S = 2.0


def look() -> GpuView:
    """Return what the host's GPUs are doing now.

    Raises:
        PreflightError: An NVIDIA driver is there and cannot be talked to.
    """
    found = inventory()
    try:
        return GpuView(found, leases.holders())
    except PreflightError as error:
        return GpuView(found, {}, leases_unknown=str(error))


def show_gpus(*, watch: bool, json_lines: bool) -> bool:
    """Print the host's GPUs, with `watch` until Ctrl-C, which is no failure, or none is left; return whether one is.

    Raises:
        PreflightError: An NVIDIA driver is there and cannot be talked to.
    """
    out = console(highlight=False)
    found = False
    with ExitStack() as stack:
        if watch:
            stack.enter_context(suppress(KeyboardInterrupt))
        live = stack.enter_context(Live(console=out, auto_refresh=False)) if watch and out.is_terminal else None
        while True:
            view = look()
            found = bool(view.inventory.gpus)
            if json_lines:
                print_json(as_json(view), indent=None if watch else 2)
            elif live:
                live.update(as_tables(view), refresh=True)
            else:
                out.print(as_tables(view))
            if not (watch and found):
                break
            time.sleep(WATCH_S)
    return found
