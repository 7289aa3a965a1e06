"""Programs that a model wrote, run over the wire by a runner without an engine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import refusal
from seams.launch import descendants

from wattdock.runner import RunnerClient
from wattdock_proto.v1 import runner_pb2 as pb
from wattdock_runner import program

if TYPE_CHECKING:
    from contract.runner_process import Runner
    from contract.shared_runners import SharedRunners

# A child that lives on in a session of its own.
LEAVES_A_CHILD = "import subprocess; subprocess.Popen(['sleep', '{}'], start_new_session=True); print('started')"
FORKS = "import os, time\nfor _ in range(5000):\n  try: os.fork()\n  except BlockingIOError: time.sleep(60)"
READS_OTHERS = """
import os, pathlib
found = b""
for file in pathlib.Path("/proc").glob("[0-9]*/environ"):
    try: found += file.read_bytes()
    except OSError: pass
print(b"HF_HUB_OFFLINE" in found, sorted(os.environ.keys() - {"LD_LIBRARY_PATH", "LC_CTYPE"}), os.listdir())
"""


@pytest.fixture
def fake(runners: SharedRunners) -> Runner:
    return runners.bare("fake")


def run(runner: Runner, source: str, timeout_s: float = 30.0, **fields: Any) -> pb.RunProgramResponse:
    asked = pb.RunProgramRequest(source=source, timeout_s=timeout_s, **fields)
    answer: pb.RunProgramResponse = runner.stub.RunProgram(asked, timeout=timeout_s + 60)
    return answer


def sleepers(seconds: str) -> list[str]:
    """Return the processes of this machine that sleep for so long."""
    word = seconds.encode()
    return [str(file) for file in Path("/proc").glob("[0-9]*/cmdline") if word in _read(file).split(b"\0")]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("source", "code", "stdout"),
    [
        ("print(input()[::-1], '\u00e9')", 0, "\u00e9b \u00e9\n"),
        ("import sys; print('told'); sys.exit(3)", 3, "told\n"),
        ("import os; os.kill(os.getpid(), 11)", -11, ""),
        ("open('big', 'wb').write(bytes(17 << 20))", 1, ""),
        ("x = bytes(3 << 30)", 1, ""),
        ("import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))", 0, "[0, 1, 2, 3]\n"),
        (READS_OTHERS, 0, "False ['CUDA_VISIBLE_DEVICES'] []\n"),
        ("import sys\nfor _ in range(1000): sys.stdout.write('x' * (1 << 20))", 1, "x" * (64 << 10)),
    ],
)
def test_a_program_ends_as_it_does_and_gets_nothing_of_the_runners(
    fake: Runner, source: str, code: int, stdout: str
) -> None:
    """Its input, output and code; no file or memory beyond the limits, no descriptor, no variable of anybody's."""
    end = run(fake, source, stdin="b\u00e9\n")
    assert (end.exit_code, end.stdout, end.timed_out) == (code, stdout, False), end.stderr
    assert ("Error" in end.stderr) == (code == 1)
    assert len(end.stderr) <= 4 << 10


@pytest.mark.parametrize("source", ["while True: pass", FORKS])
def test_a_program_without_end_is_killed_at_its_time_with_all_that_it_started(fake: Runner, source: str) -> None:
    """And a bomb has gone off in a bounded room."""
    began_s = time.monotonic()
    end = run(fake, source, 1.5)
    assert (end.timed_out, end.exit_code) == (True, -9)
    assert time.monotonic() - began_s < 60
    assert descendants(fake.process.pid) == []


def test_what_a_program_leaves_ends_with_it(
    fake: Runner, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the kernel's namespaces, and without, as in a container."""
    seconds = f"7{os.getpid()}"
    source = LEAVES_A_CHILD.format(seconds)
    assert run(fake, source).stdout == "started\n"
    assert sleepers(seconds) == []
    # Root's Python may be out of another user's reach.
    alone = (
        "import sys, wattdock_runner.program as p; p.NAMESPACES = -1; p.os.geteuid = lambda: 1; p.main(*sys.argv[1:])"
    )
    monkeypatch.setattr(program, "GUARD", ("-c", alone))
    monkeypatch.setenv("PYTHONPATH", str(Path(program.__file__).parents[1]))
    assert program.run_program(source, "", 30.0)["stdout"] == "started\n"
    assert sleepers(seconds) == []
    assert capfd.readouterr().err == ""


def test_a_program_never_runs_beside_a_pass_nor_for_hours(fake: Runner, model_path: Path) -> None:
    """The pass would be measured with it."""
    fake.load(model_path)
    call = fake.start_long()
    try:
        assert refusal(run(fake, "") for _ in (1,))[0] == "FAILED_PRECONDITION"
    finally:
        call.cancel()
    assert refusal(run(fake, "", seconds) for seconds in (601.0,))[0] == "INVALID_ARGUMENT"
    with RunnerClient(fake) as client:  # type: ignore[arg-type]
        end = client.run_program("print(input())", timeout_s=20.0, stdin="a watt")
    assert (end.exit_code, end.stdout, end.stderr, end.timed_out) == (0, "a watt\n", "", False)
