"""For the whole suite, which `make test` spreads over several processes."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import settings
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


# No test may need a quiet machine, where the first of many cases would be quick enough.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")

# What stays in one process: all that looks at what is on the container engine; what is drawn of the same two studies.
TOGETHER = {"containers": ("tests/containers/", "tests/docs/test_commands.py"), "report": ("tests/report/",)}


class ByFile(LoadFileScheduling):  # type: ignore[misc] # it comes without types
    """Keeps a file's tests in one process, and those of TOGETHER."""

    def _split_scope(self, nodeid: str) -> str:
        together = (name for name, places in TOGETHER.items() if nodeid.startswith(places))
        return next(together, str(super()._split_scope(nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """A longer group must not begin last: they go in the order in which they were collected."""
    config.option.loadscopereorder = False
    return ByFile(config, log)
