"""For the whole suite."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let what the suite starts hear Ctrl-C, also where a shell runs the suite in its background and so ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
