"""For the whole suite, which `make test` spreads over several processes."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

WORKER = os.environ.get("PYTEST_XDIST_WORKER")
# More threads than cores wait for each other: engines side by side would crawl.
ONE_THREAD_EACH = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def pytest_configure() -> None:
    """Let what the suite starts hear Ctrl-C, also where a shell runs the suite in its background and so ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if WORKER:
        os.environ.update(ONE_THREAD_EACH)


class ByFile(LoadFileScheduling):  # type: ignore[misc] # it comes without types
    """Keeps a file's tests in one process, and all that look at what is on the container engine."""

    def _split_scope(self, nodeid: str) -> str:
        in_containers = nodeid.startswith(("tests/containers/", "tests/docs/test_commands.py"))
        return "containers" if in_containers else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """A longer group must not begin last: they go in the order in which they were collected."""
    config.option.loadscopereorder = False
    return ByFile(config, log)
