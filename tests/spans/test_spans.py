"""What a program marks stands in its files, whatever becomes of the program; and marks do no harm to a program.

Programs run as processes of their own: a module's state begins with its process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from unprivileged import REPO, run_as_user, unable, user_home

from wattdock_spans import FLUSH_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPANS = REPO / "spans"
# Only ends what hangs.
PATIENCE_S = 60
# A killed process may lose this much.
LOST_S = 0.5
BEGIN = """
import os, signal, sys, threading, time
from wattdock_spans import span, step, work
"""
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")


def environ(folder: Path | None, **more: str) -> dict[str, str]:
    """Return the environment of a program whose marks go to `folder`."""
    own = {name: value for name, value in os.environ.items() if name not in (*RANKS, "WATTDOCK_SPANS")}
    return own | {"PYTHONPATH": str(SPANS)} | ({} if folder is None else {"WATTDOCK_SPANS": str(folder)}) | more


def command(program: str) -> list[str]:
    # A warning is an error: the marks must not cause one, as Python's about a fork beside threads.
    return [sys.executable, "-W", "error", "-c", BEGIN + program]


def ran(program: str, folder: Path | None, **more: str) -> str:
    """Run a program to its end, and return what it printed on standard error."""
    done = subprocess.run(
        command(program), env=environ(folder, **more), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def files(folder: Path) -> dict[int, list[list[Any]]]:
    """Return the lines of each process by its number, without their headers, which are checked."""
    found = {}
    for file in folder.iterdir():
        (kind, form, pid, _, begin_ns), *lines = (json.loads(line) for line in file.read_text().splitlines())
        assert (kind, form, file.name) == ("process", 1, f"{pid}-{begin_ns}.jsonl")
        found[pid] = lines
    return found


def only(folder: Path) -> list[list[Any]]:
    """Return the lines of the only process."""
    (lines,) = files(folder).values()
    return lines


def ended(lines: list[list[Any]]) -> list[str]:
    """Return the names of the spans that have ended, in the order in which they did."""
    return [name for kind, name, *_ in lines if kind == "span"]


def test_every_kind_of_line_says_what_happened_and_when(tmp_path: Path) -> None:
    """Times are of the clock that all processes of a machine share, and lie in the order of what happened."""
    begun_ns = time.monotonic_ns()
    ran(
        """
@span("call", n=2)
def call():
    step()
with span("epoch", n=3):
    with span("batch"):
        work(samples=64, tokens=65_536.0)
    call()
step(4)
""",
        tmp_path,
        SLURM_PROCID="3",
        RANK="1",
    )
    (file,) = tmp_path.iterdir()
    header, *lines = (json.loads(line) for line in file.read_text().splitlines())
    assert header[:2] + header[3:4] == ["process", 1, 1]
    by_kind: dict[str, list[list[Any]]] = {}
    for kind, *rest in lines:
        by_kind.setdefault(kind, []).append(rest)
    spans = {name: (begin_ns, end_ns, n) for name, begin_ns, end_ns, n in by_kind["span"]}
    (epoch, batch, call) = (spans[name] for name in ("epoch", "batch", "call"))
    assert (epoch[2], batch[2], call[2]) == (3, 1, 2)
    ((worked_ns, counts),) = by_kind["work"]
    assert counts == {"samples": 64, "tokens": 65_536}
    ((within_ns, one), (after_ns, four)) = by_kind["step"]
    assert (one, four) == (1, 4)
    in_order = [header[4], epoch[0], batch[0], worked_ns, batch[1], call[0], within_ns, call[1], epoch[1], after_ns]
    assert in_order == sorted(in_order)
    assert begun_ns < in_order[0]
    assert in_order[-1] < time.monotonic_ns()


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, None),
        ({"SLURM_PROCID": "5"}, 5),
        ({"OMPI_COMM_WORLD_RANK": "2", "SLURM_PROCID": "0"}, 2),
        ({"RANK": "first", "PMI_RANK": "7"}, 7),
    ],
)
def test_a_launcher_says_which_rank_a_process_is(variables: dict[str, str], rank: int | None, tmp_path: Path) -> None:
    """The launcher nearest to the process counts; what is no number does not."""
    ran("step()", tmp_path, **variables)
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text().splitlines()[0])[3] == rank


def test_names_may_hold_anything(tmp_path: Path) -> None:
    """What looks like an end of a line does not end one."""
    names = ["a\nb", '],["span",', "x],[", '"', "\\", "日", "\udc80", ""]
    ran(f"for name in {names!r}:\n    with span(name): work(**{{name: 1}})", tmp_path)
    lines = only(tmp_path)
    assert ended(lines) == names
    assert [[*line[2]] for line in lines if line[0] == "work"] == [[name] for name in names]


def test_a_span_that_an_exception_leaves_is_written(tmp_path: Path) -> None:
    """It took its energy; the exception goes on, and so does a coroutine's value."""
    ran(
        """
import asyncio
@span("fails")
def fails(): raise KeyError
@span("waits")
async def waits():
    await asyncio.sleep(0.02)
    return 5
try:
    with span("outer"): fails()
except KeyError: step()
assert asyncio.run(waits()) == 5
""",
        tmp_path,
    )
    lines = only(tmp_path)
    assert ended(lines) == ["fails", "outer", "waits"]
    assert [line[0] for line in lines].count("step") == 1
    (waited,) = (line for line in lines if line[:2] == ["span", "waits"])
    assert waited[3] - waited[2] >= 20_000_000


def test_one_span_entered_within_itself_is_two(tmp_path: Path) -> None:
    """The outer one begins where it began: a figure within it has all of its joules."""
    ran(
        """
again = span("again")
with again:
    work(outer=1)
    with again: work(inner=1)
""",
        tmp_path,
    )
    (_, outer_ns, _), (_, inner_ns, _), *spans = only(tmp_path)
    (inner, outer) = (line[2:4] for line in spans)
    assert outer[0] <= outer_ns <= inner[0] <= inner_ns <= inner[1] <= outer[1]


def test_threads_lose_nothing_of_each_other(tmp_path: Path) -> None:
    """While the file is being written, too."""
    ran(
        """
def worker(name):
    with span(name):
        for _ in range(20_000): step()
threads = [threading.Thread(target=worker, args=(f"thread {i}",)) for i in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
        tmp_path,
    )
    lines = only(tmp_path)
    assert sum(line[2] for line in lines if line[0] == "step") == 80_000
    assert sorted(ended(lines)) == [f"thread {number}" for number in range(4)]


@pytest.mark.parametrize("how", ["fork", "multiprocessing"])
def test_a_forked_child_has_a_file_of_its_own(how: str, tmp_path: Path) -> None:
    """It repeats nothing of its parent's, nor the span that it was forked within; Python has no thread to warn of."""
    fork = {
        "fork": "pid = os.fork()\nif not pid: child(); sys.exit()\nassert os.waitpid(pid, 0)[1] == 0",
        "multiprocessing": """
import multiprocessing
process = multiprocessing.get_context("fork").Process(target=child)
process.start(); process.join()
assert process.exitcode == 0
""",
    }[how]
    program = """
def child():
    with span("child"): step(10)
with span("parent"):
    step()
"""
    ran(program + "\n".join(f"    {line}" for line in fork.splitlines()) + "\n    step()", tmp_path)
    first, second = sorted(files(tmp_path).values(), key=lambda lines: str(ended(lines)))
    assert [(ended(first), ended(second))] == [(["child"], ["parent"])]
    assert [line[2] for line in first if line[0] == "step"] == [10]
    assert [line[2] for line in second if line[0] == "step"] == [1, 1]


def test_a_killed_process_loses_its_last_half_second_at_most(tmp_path: Path) -> None:
    """What it marked before stands there, though the program marks nothing more."""
    assert FLUSH_S < LOST_S
    program = """
with span("epoch"):
    step(7)
    print(flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen(command(program), env=environ(tmp_path), stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    (file,) = tmp_path.iterdir()
    until = time.monotonic() + PATIENCE_S
    while '"step"' not in file.read_text() and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    lines = only(tmp_path)
    assert [line[2] for line in lines if line[0] == "step"] == [7]
    assert process.returncode == -signal.SIGKILL


def test_the_end_of_the_interpreter_is_no_end_of_marks(tmp_path: Path) -> None:
    """A handler that was registered before ours runs after it."""
    early = "import atexit\natexit.register(lambda: step(3))\n"
    program = [sys.executable, "-c", f"{early}{BEGIN}atexit.register(step, 2)\nstep()"]
    subprocess.run(program, env=environ(tmp_path), timeout=PATIENCE_S, check=True)
    assert [line[2] for line in only(tmp_path)] == [1, 2, 3]


def test_a_program_that_closes_all_files_goes_on_being_recorded(tmp_path: Path) -> None:
    """As daemons do; what they open next is not written to."""
    other = tmp_path / "other"
    marks = tmp_path / "marks"
    marks.mkdir()
    ran(f"step()\nos.closerange(3, 100)\nfiles = [open({str(other)!r}, 'w') for _ in range(20)]\nstep(2)", marks)
    assert [line[2] for line in only(marks)] == [1, 2]
    assert other.read_text() == ""


@pytest.mark.parametrize("variable", [None, ""])
def test_where_nothing_measures_nothing_happens(variable: str | None, tmp_path: Path) -> None:
    """No file, no word, no thread."""
    program = """
with span("epoch"): work(samples=1, wrong="x")
@span("call")
def call(): return 5
assert call() == 5
step()
assert threading.active_count() == 1
"""
    assert ran(program, None, **({} if variable is None else {"WATTDOCK_SPANS": variable})) == ""
    assert list(tmp_path.iterdir()) == []


USES = "for _ in range(3):\n    with span('epoch'): work(samples=64); step()\n    time.sleep(0.3)\nprint('done')"


def test_a_folder_that_cannot_be_written_costs_one_line(tmp_path: Path) -> None:
    """For another user's folder, as the kernel refuses it, and for one that is not there."""
    home = user_home(tmp_path)
    folder = home / "marks"
    folder.mkdir(mode=0o555)
    for place, why in ((folder, "Permission denied"), (home / "absent", "No such file or directory")):
        done = run_as_user(
            command(USES), env={"HOME": str(home), "PYTHONPATH": str(SPANS), "WATTDOCK_SPANS": str(place)}, cwd=home
        )
        assert (done.returncode, done.stdout) == (0, "done\n")
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"wattdock_spans: cannot write {place}/")
        assert line.endswith(f"({why}): spans and work are no longer recorded")
    assert list(folder.iterdir()) == []


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 kB."""
    if os.getuid() != 0 or (unable() is not None):
        pytest.skip("needs root, to mount a small disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_a_full_disk_costs_one_line_and_the_marks_from_then_on(full: Path) -> None:
    """All lines but a torn last one can be read."""
    said = ran("for number in range(3_000): step(number)\ntime.sleep(1)\n" + USES, full)
    assert said.count("\n") == 1
    assert "(No space left on device)" in said
    (file,) = full.iterdir()
    _, *lines, _ = file.read_text().splitlines()
    assert len(lines) > 100
    assert [json.loads(line)[2] for line in lines] == list(range(len(lines)))


def test_a_count_that_is_no_number_is_left_out_with_one_line(tmp_path: Path) -> None:
    """The others of the call stay, those of arrays' types too; a span of that many is not written."""
    numpy = "import numpy\nwork(samples=numpy.int64(3), tokens=numpy.float32(4.0), ready=True)\n"
    program = "work(samples=2, loss=float('nan'), name='x', huge=10**5000)\nstep([1])\nwith span('a', n=None): pass\n"
    said = ran(numpy + program + "with span('b'): pass", tmp_path)
    assert said == "wattdock_spans: a count of type float is no finite number; it is left out\n"
    lines = only(tmp_path)
    assert [line[2] for line in lines if line[0] == "work"] == [
        {"samples": 3, "tokens": 4, "ready": 1},
        {"samples": 2},
    ]
    assert ended(lines) == ["b"]
    assert [line for line in lines if line[0] == "step"] == []


def test_a_fraction_is_written_for_the_measurement_to_refuse_and_said_in_one_line(tmp_path: Path) -> None:
    """Left out, it would be work that nobody misses."""
    said = ran("step(0.5)\nwork(samples=1.5)\nstep(2.0)", tmp_path)
    why = "is not whole, and fails the measurement; count in a smaller unit"
    assert said == f"wattdock_spans: a count of 0.5 {why}\n"
    assert [line[2] for line in only(tmp_path) if line[0] == "step"] == [0.5, 2]


def test_a_span_without_a_name_is_a_mistake_that_shows_at_once(tmp_path: Path) -> None:
    """Else the function would be taken for a name, and its first argument for what to decorate."""
    program = "try:\n    @span\n    def train(model): pass\nexcept TypeError as error: print(error, file=sys.stderr)"
    assert ran(program, tmp_path) == 'a span needs a name: @span("step")\n'


def test_a_signals_handler_and_forks_lose_nothing(tmp_path: Path) -> None:
    """Whatever a call was about to do when the signal came; each file has one header, before all else."""
    said = ran(
        """
heard = []
def hear(*_):
    heard.append(1)
    step()
signal.signal(signal.SIGALRM, hear)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
children = 0
until = time.monotonic() + 1
while time.monotonic() < until:
    with span("fork"):
        pid = os.fork()
    if not pid:
        # Source: setitimer(2), a child inherits no timer.
        step(2)
        os._exit(0)
    children += 1
    os.waitpid(pid, 0)
signal.setitimer(signal.ITIMER_REAL, 0)
print(os.getpid(), len(heard), children, file=sys.stderr)
""",
        tmp_path,
    )
    pid, heard, children = map(int, said.split())
    lines = files(tmp_path)
    own = lines.pop(pid)
    assert [line[2] for line in own if line[0] == "step"] == [1] * heard
    assert ended(own) == ["fork"] * children
    assert [[line[2] for line in child] for child in lines.values()] == [[2]] * children
