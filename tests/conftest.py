"""For the whole suite, which `make test` spreads over several processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

WORKER = os.environ.get("PYTEST_XDIST_WORKER")
TESTS = Path(__file__).parent
# More threads than cores wait for each other: engines side by side would crawl.
ONE_THREAD_EACH = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let what the suite starts hear Ctrl-C, also where a shell runs the suite in its background and so ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if WORKER:
        os.environ.update(ONE_THREAD_EACH)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file's tests in one process, and all that share the container engine's images."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        item.add_marker(pytest.mark.xdist_group("containers" if folder == "containers" else str(item.path)))
