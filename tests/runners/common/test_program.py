"""Programs that a model wrote, run over the wire by a runner without an engine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

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
LEAVES_A_CHILD = "import subprocess; subprocess.Popen(['sleep', '{}'], start_new_session=True); raise SystemExit(7)"
FORKS = "import os, time\nfor _ in range(5000):\n  try: os.fork()\n  except BlockingIOError: time.sleep(60)"
READS_OTHERS = """
import os, pathlib
found = b""
for file in pathlib.Path("/proc").glob("[0-9]*/environ"):
    try: found += file.read_bytes()
    except OSError: pass
assert b"HF_HUB_OFFLINE" not in found, "a runner's variable"
assert os.environ.keys() - {"LD_LIBRARY_PATH", "LC_CTYPE"} == {"CUDA_VISIBLE_DEVICES"}
assert os.listdir() == []
raise SystemExit(7)
"""


@pytest.fixture
def fake(runners: SharedRunners) -> Runner:
    return runners.bare("fake")


def run(runner: Runner, source: str, timeout_s: float = 30.0) -> int:
    asked = pb.RunProgramRequest(source=source, timeout_s=timeout_s)
    return int(runner.stub.RunProgram(asked, timeout=timeout_s + 60).exit_code)


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
    ("source", "code"),
    [
        ("print('\u00e9' * (65 << 20))", 0),
        ("import sys; sys.exit(3)", 3),
        ("import os; os.kill(os.getpid(), 11)", -11),
        ("try: input()\nexcept EOFError: raise SystemExit(7)", 7),
        ("try: open('big', 'wb').write(bytes(17 << 20))\nexcept OSError: raise SystemExit(7)", 7),
        ("try: bytes(3 << 30)\nexcept MemoryError: raise SystemExit(7)", 7),
        ("import os; raise SystemExit(len(os.listdir('/proc/self/fd')))", 4),
        ("raise SystemExit(7 if 'NoNewPrivs:\\t1\\n' in open('/proc/self/status') else 1)", 7),
        (READS_OTHERS, 7),
    ],
)
def test_a_program_ends_as_it_does_and_gets_nothing_of_the_runners(fake: Runner, source: str, code: int) -> None:
    """No file or memory beyond the limits, no input, no descriptor but its own, no variable of anybody's."""
    assert run(fake, source) == code


@pytest.mark.parametrize("source", ["while True: pass", FORKS])
def test_a_program_without_end_is_killed_at_its_time_with_all_that_it_started(fake: Runner, source: str) -> None:
    """And a bomb has gone off in a bounded room."""
    began_s = time.monotonic()
    assert run(fake, source, 1.5) == -9
    assert time.monotonic() - began_s < 60
    assert descendants(fake.process.pid) == []


def test_what_a_program_leaves_ends_with_it(
    fake: Runner, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the kernel's namespaces, and without, as in a container."""
    seconds = f"7{os.getpid()}"
    source = LEAVES_A_CHILD.format(seconds)
    assert run(fake, source) == 7
    assert sleepers(seconds) == []
    # Root's Python may be out of another user's reach.
    alone = (
        "import sys, wattdock_runner.program as p; p.NAMESPACES = -1; p.os.geteuid = lambda: 1; p.main(*sys.argv[1:])"
    )
    monkeypatch.setattr(program, "GUARD", ("-c", alone))
    monkeypatch.setenv("PYTHONPATH", str(Path(program.__file__).parents[1]))
    assert program.run_program(source, 30.0) == 7
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
        assert client.run_program("raise SystemExit(7)", timeout_s=20.0) == 7
