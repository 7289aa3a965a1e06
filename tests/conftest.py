"""For the whole suite, which `make test` spreads over several processes."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from collections.abc import Generator

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
TOGETHER = {
    "containers": (
        "tests/containers/",
        "tests/docs/test_commands.py::test_every_command_of_a_page_succeeds[shared-server]",
    ),
    "report": ("tests/reports/",),
}
# It starts engines of its own.
APART = ("tests/containers/test_publication.py",)
# Much computing and no tight timing: whatever is simulated in real time beside it, such as a meter's GPU, goes before.
GIVE_WAY = (
    *("tests/containers/", "tests/docs/", "tests/runners/", "tests/inputs/", "tests/reports/"),
    *("tests/e2e/test_vllm.py", "tests/e2e/test_pytorch.py", "tests/e2e/test_split.py"),
)
NICENESS = 10
# A long file must not begin last.
FIRST = (*APART, "tests/containers/", "tests/docs/", "tests/runners/", "tests/e2e/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes longest first; the rest stays in its order."""
    items.sort(
        key=lambda item: next((at for at, place in enumerate(FIRST) if item.nodeid.startswith(place)), len(FIRST))
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let the tests of GIVE_WAY, and all that they start, give way; only root can take that back."""
    gives_way = WORKER is not None and os.geteuid() == 0 and item.nodeid.startswith(GIVE_WAY)
    if gives_way:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    try:
        return (yield)
    finally:
        if gives_way:
            os.setpriority(os.PRIO_PROCESS, 0, 0)


class ByFile(LoadFileScheduling):  # type: ignore[misc] # it comes without types
    """Keeps a file's tests in one process, and those of TOGETHER."""

    def _split_scope(self, nodeid: str) -> str:
        together = (name for name, places in TOGETHER.items() if nodeid.startswith(places))
        file = str(super()._split_scope(nodeid))
        return file if nodeid.startswith(APART) else next(together, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Files go in the order in which they were collected, not by how many tests they hold."""
    config.option.loadscopereorder = False
    return ByFile(config, log)
