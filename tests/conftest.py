"""For the whole suite, which `make test` spreads over several processes."""

from __future__ import annotations

import atexit
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from functools import cache
from itertools import chain
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, Any

import chromium
import fake_nvml
import pytest
from _pytest.tmpdir import get_user
from hypothesis import settings
from typer.main import get_command
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from contract.shared_runners import SharedRunners
    from selenium.webdriver import Chrome

    # Calls the command line in the test's process.
    Called = Callable[..., CompletedProcess[str]]

WORKER = os.environ.get("PYTEST_XDIST_WORKER")
# More threads than cores wait for each other: engines side by side would crawl.
ONE_THREAD_EACH = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def pytest_configure() -> None:
    """Let what the suite starts hear Ctrl-C, also where a shell runs the suite in its background and so ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(ONE_THREAD_EACH)
    own = Path(tempfile.mkdtemp(prefix="wd"))
    # pytest's own folders stay for a while, where another user made no folder of that name, which pytest refuses: a
    # failed test's can be looked at. After `su`, root still has the user's name.
    kept = own.parent / f"pytest-of-{get_user() or 'unknown'}"
    is_foreign = os.path.lexists(kept) and kept.lstat().st_uid != os.getuid()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(own if is_foreign else own.parent))
    # Sockets and unprivileged users' files lie in it.
    own.chmod(0o755)
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    # No other wattdock on this machine, nor another process of the suite, is disturbed or stops a test.
    os.environ |= {"TMPDIR": str(own), "WATTDOCK_HOME": f"{own}/home", "WATTDOCK_LEASES": f"{own}/leases"}
    os.environ.pop("XDG_RUNTIME_DIR", None)
    tempfile.tempdir = None


# No test may need a quiet machine, where the first of many cases would be quick enough.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")

ENGINES = tuple(
    f"tests/runners/{name}"
    for name in ("llamacpp/", "pytorch/", "sglang/", "tensorrt/", "vllm/", "test_real_engines.py", "test_standins.py")
)
# What stays in one process: all that looks at what is on the container engine; what shares a served engine, a stand-in
# for one, or another runner's process; what transformers counts, recordings of simulated GPUs, sources as they are
# parsed, or two measured studies and what draws them.
TOGETHER = {
    "containers": (
        "tests/containers/",
        "tests/docs/test_commands.py::test_every_command_of_a_page_succeeds[shared-server]",
    ),
    "served": ("tests/runners/vllm/test_vllm_served.py",),
    "stand-ins": ("tests/runners/sglang/", "tests/runners/tensorrt/", "tests/runners/test_standins.py"),
    "runners": (*(f"tests/contract/test_{name}.py" for name in ("contract", "stop", "work_sent")), *ENGINES),
    "counts": ("tests/inputs/test_architecture.py", "tests/inputs/test_memory.py"),
    "recordings": tuple(f"tests/audit/test_{name}.py" for name in ("audit", "audit_restarts", "verdict")),
    "sources": tuple(f"tests/test_{name}.py" for name in ("boundaries", "rooms", "output", "json_text")),
    "drawings": ("tests/reports/", "tests/console/test_stored.py", "tests/console/test_hostile_text.py"),
}
# A container engine that the environment names, and whose tests see it.
ENGINE, ASKS_ENGINE = os.environ.get("DOCKER_HOST"), (*TOGETHER["containers"], "tests/launch/test_launchers.py")
# It starts engines of its own.
APART = ("tests/containers/test_publication.py",)
# A long file must not begin last.
FIRST = (
    *(*APART, "tests/slurm/", "tests/fuzz/", "tests/containers/", "tests/docs/", "tests/contract/"),
    *(
        "tests/runners/",
        "loaded",
        "tests/e2e/",
        "tests/inputs/test_headers.py",
        "tests/metering/test_energy_intervals.py",
    ),
)
# Of the contract's tests with a loaded runner, those that come last: another model, and the runner's end.
ORDER = ("test_stop.py", "::test_sigterm_ends")


TRAINING = ("tests/spans/test_ddp.py", "tests/spans/test_mirrored.py")
# Engines, containers, the whole command and what the docs say of it; elsewhere a file marks itself as slow.
SLOW = (
    *("tests/containers/", "tests/contract/", "tests/e2e/", "tests/benchmarks/", "tests/fuzz/", "tests/slurm/"),
    *("tests/docs/test_commands.py", "tests/docs/test_site.py", "tests/reports/test_browser.py", *ENGINES),
    "tests/quality/test_harness.py",
    *TRAINING,
)
# Transformers' own counts, the embedded model, and Chromium.
SLOW_FIXTURES = {"theirs", "wheel", "browser"}
# Of these, what is about the whole system: `make test-system` runs it, `make test` does not.
SYSTEM = (
    *("tests/containers/", "tests/e2e/", "tests/fuzz/", "tests/slurm/"),
    *("tests/docs/test_commands.py", "tests/live/test_page.py", "tests/reports/test_browser.py"),
    "tests/quality/test_harness.py",
    *("tests/runners/pytorch/test_pytorch_spread.py", "tests/runners/vllm/test_vllm_processes.py"),
    *TRAINING,
)
# For each way of choosing tests, what it leaves out without reading it.
UNREAD: dict[str, tuple[str, ...]] = {"not slow": SLOW, "not system": SYSTEM}
# A file that has moved would lose its group without a word.
PLACES = {place.partition("::")[0] for place in chain(APART, FIRST, SLOW, SYSTEM, *TOGETHER.values())} - {"loaded"}
assert not (gone := [place for place in PLACES if not (Path(__file__).parents[1] / place).exists()]), gone


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out unread what `-m` would leave out after reading it."""
    name = f"{collection_path.relative_to(config.rootpath)}{'/' * collection_path.is_dir()}"
    if config.option.markexpr == "system":
        is_asked_for = name.startswith(SYSTEM) or any(place.startswith(name) for place in SYSTEM)
        return None if is_asked_for or collection_path.name == "conftest.py" else True
    return True if name.startswith(UNREAD.get(config.option.markexpr, ())) else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Show a container engine that the environment names to its own tests only.

    Each command removes what dead coordinators left on its engine, and root's all users': orphans of another test, too.
    """
    os.environ.pop("DOCKER_HOST", None)
    if ENGINE and item.nodeid.startswith((*ASKS_ENGINE, *APART)):
        os.environ["DOCKER_HOST"] = ENGINE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by place and fixture, and put what takes longest first; the rest stays in its order."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if item.nodeid.startswith(SYSTEM):
            item.add_marker("system")
        if item.nodeid.startswith(SLOW) or SLOW_FIXTURES & fixtures:
            item.add_marker("slow")

    def position(item: pytest.Item) -> tuple[int, str, int]:
        # The last of the contract's tests ends the runner, which the engines' own tests share.
        fixtures = {"runner", "loaded_runner"} & set(getattr(item, "fixturenames", ()))
        is_loaded = item.nodeid.startswith("tests/contract/") and bool(fixtures)
        name = "loaded" if is_loaded else item.nodeid
        at = next((at for at, place in enumerate(FIRST) if name.startswith(place)), len(FIRST))
        if not is_loaded:
            return at, "", 0
        # One backend after the other, and of each the tests that load another model late, for loads take long.
        rank = next((rank for rank, words in enumerate(ORDER) if words in item.nodeid), -1)
        return at, item.callspec.params["subject"].name, rank  # type: ignore[attr-defined]

    items.sort(key=position)


def pytest_collection_finish() -> None:
    """Keep the collected tests, which live until the end, out of every search for garbage, and search less often."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


# Keys of coverage's counts.
COVERAGE = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how much of each room the tests ran, where that was measured."""
    file = (config.getoption("cov_report", None) or {}).get("json")
    if not file:
        return
    rooms: dict[str, Counter[str]] = {}
    for name, measured in json.loads(Path(file).read_text())["files"].items():
        room = "".join(Path(name).parent.relative_to("coordinator/wattdock").parts[:1]) or "(root)"
        counts = {kind: measured["summary"][kind] for kind in COVERAGE}
        rooms.setdefault(room, Counter()).update(counts)
    terminalreporter.section("how much of each room ran")
    terminalreporter.line("room        lines  branches")
    for room, count in [*sorted(rooms.items()), ("all", sum(rooms.values(), Counter()))]:
        covered_lines, lines, covered_branches, branches = (count[kind] for kind in COVERAGE)
        terminalreporter.line(f"{room:10} {covered_lines / lines:6.1%}   {covered_branches / max(branches, 1):6.1%}")


class ByFile(LoadFileScheduling):  # type: ignore[misc] # it comes without types
    """Keeps a file's tests in one process, and those of TOGETHER."""

    def _split_scope(self, nodeid: str) -> str:
        if "[vllm-served" in nodeid:
            return "served"
        if nodeid.startswith("tests/contract/") and ("[sglang" in nodeid or "[tensorrt" in nodeid):
            return "stand-ins"
        together = (name for name, places in TOGETHER.items() if nodeid.startswith(places))
        file = str(super()._split_scope(nodeid))
        return file if nodeid.startswith(APART) else next(together, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Files go in the order in which they were collected, not by how many tests they hold."""
    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what is made once for all processes of the suite."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if WORKER else own


@pytest.fixture(scope="session")
def library(common: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a freshly built fake libnvidia-ml.so.1, to which each process adds its own configuration."""
    from seams.host import build_once

    build_once(common / "fake_nvml", fake_nvml.build, progress=print)
    return shutil.copytree(common / "fake_nvml", tmp_path_factory.mktemp("fake_nvml"), dirs_exist_ok=True)


@pytest.fixture(scope="session")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedRunners]:
    """Runner processes that the session's tests share."""
    from contract.shared_runners import SharedRunners

    with ExitStack() as ends:
        yield SharedRunners(ends, tmp_path_factory.mktemp("runners"))


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with config.json only."""
    from contract.subjects import write_config

    return write_config(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def models(common: Path) -> Path:
    """The folder `models` of a home with the embedded model."""
    from wattdock.config import ModelSpec
    from wattdock.inputs import resolve_model

    return resolve_model(ModelSpec(id=ModelSpec.EMBEDDED), home=common / "home", progress=print).path.parent


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """A test that leaves a signal ignored fails itself: all that later tests start would inherit it."""
    before = {number: signal.getsignal(number) for number in signal.Signals}
    yield
    assert {number: signal.getsignal(number) for number in signal.Signals} == before


@cache
def built(app: Any) -> Any:
    """Return the command that typer makes of an app; the same each time, and a tenth of a second's work."""
    return get_command(app)


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Called:
    """Call the command line in this process, in an empty current folder and with a home of its own."""
    from seams.console import exits, main

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name in ("COLUMNS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WATTDOCK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WATTDOCK_LEASES", str(tmp_path / "leases"))
    monkeypatch.setenv("WATTDOCK_RUNNERS", str(Path(__file__).parent / "runners"))
    monkeypatch.setattr("typer.main.get_command", built)
    for module in (exits, main):
        # Nobody else in this process would hear Ctrl-C again.
        monkeypatch.setattr(module, "ignore_interrupts", lambda: None)

    def call(*words: str | Path) -> CompletedProcess[str]:
        # For publication a container runs, which has its own interpreter.
        is_process = words[0] in ("run", "plan", "reproduce") and "--publishable" not in words
        python = ("--runner-python", sys.executable) if is_process else ()
        monkeypatch.setattr(sys, "argv", ["wattdock", *map(str, (*words, *python))])
        with pytest.raises(SystemExit) as ended:
            main.main()
        printed = capsys.readouterr()
        return CompletedProcess(words, int(ended.value.code or 0), printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def browser() -> Iterator[Chrome]:
    """Headless Chromium that logs what a page says and fetches."""
    if not chromium.is_there():
        pytest.skip(chromium.MISSING)
    with chromium.opened(browser="ALL", performance="ALL") as opened:
        yield opened
