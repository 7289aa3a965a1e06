"""Fuzz what reads files and messages of others: `make fuzz ARGS='--target result --minutes 60 --seed 1'`.

Each target runs in a process of its own, which may take 1 GB more than it does for valid inputs. An input ends with a
result or one clear error; another exception, a crash, or more than the time allowed is a finding. Its files are kept
below build/fuzz/<target>/, and `--again FOLDER` runs them once more.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import faulthandler
import functools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / folder) for folder in ("tests", "runners/common", "runners/llamacpp")]
# Transformers, which runners read folders with; whatever the suite has itself comes first.
sys.path += map(str, REPO.glob("runners/pytorch/.venv/lib/python3*/site-packages"))

if TYPE_CHECKING:
    from fuzz.mutators import Files
    from fuzz.targets import Target

MEMORY_BYTES = 1_000_000_000
# Of one input: of computing, which the kernel ends, and of waiting, which the parent ends. No machine is that busy.
CPU_S, WALL_S = 20, 120
BATCH = 100
FOUND = REPO / "build/fuzz"
MEASURED = {"before_bytes": 0}


def main() -> int:
    """Fuzz the targets one after another; return 1 if anything was found."""
    options = _options()
    faulthandler.enable()
    if options.again:
        _again(options.target[0], options.again.resolve())
        return 0
    if options.worker:
        _work(options.target[0], options.worker, seed=options.seed, seconds=60 * options.minutes, inputs=options.inputs)
        return 0
    found = 0
    print(f"{'target':<9} {'min':>6} {'inputs':>8} {'/s':>6} {'accepted':>8} {'MB more':>8} {'seed':>10} findings")
    for name in options.target:
        total, findings = _fuzz(name, seconds=60 * options.minutes, seed=options.seed, inputs=options.inputs)
        found += len(findings)
        spent_s, inputs = total["seconds"], total["inputs"]
        accepted = f"{total['accepted'] / max(inputs, 1):.0%}"
        line = f"{name:<9} {spent_s / 60:>6.1f} {inputs:>8} {inputs / max(spent_s, 1):>6.1f} {accepted:>8}"
        print(f"{line} {total['memory_bytes'] / 1e6:>8.0f} {options.seed:>10} {len(findings)}", flush=True)
        for finding in findings:
            print(f"  {finding}", flush=True)
    return int(found > 0)


def _options() -> argparse.Namespace:
    from fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="one of them; all unless given")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--inputs", type=int, help="for each target, however long they take; the same for a seed")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="run the input in this folder once")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.target = options.target or list(TARGETS)
    return options


def _again(name: str, folder: Path) -> None:
    from fuzz.commands import content_of
    from fuzz.targets import TARGETS

    with tempfile.TemporaryDirectory() as scratch, _alone(Path(scratch)):
        print(_run(TARGETS[name], content_of(folder), Path(scratch)))


def outcome(target: Target, folder: Path) -> str:
    """Run one input; return "accepted", or the one line of its refusal.

    Raises:
        Exception: What should not have come.
    """
    from fuzz.commands import REFUSALS

    from wattdock.errors import WattdockError

    REFUSALS.clear()
    try:
        target.run(folder)
    except WattdockError as error:
        return str(error)
    return "".join(REFUSALS) or "accepted"


# ---- The parent: starts workers, ends what hangs, keeps what was found


def _fuzz(name: str, *, seconds: float, seed: int, inputs: int | None) -> tuple[Counter[str], list[str]]:
    """Let one worker after another fuzz a target; a worker ends early where an input ends the process."""
    total: Counter[str] = Counter()
    findings: list[str] = []
    began = time.monotonic()
    while (left_s := seconds - (time.monotonic() - began)) > 0 and not (inputs and total["batches"]):
        with tempfile.TemporaryDirectory(prefix="wattdock-fuzz-") as scratch:
            words = ["--target", name, "--worker", scratch, "--minutes", left_s / 60, "--seed", seed + total["batches"]]
            words += ["--inputs", inputs] if inputs else []
            with Path(scratch, "log").open("wb") as log:
                worker = subprocess.Popen(
                    [sys.executable, __file__, *map(str, words)], stdout=log, stderr=log, env=_environ(scratch)
                )
                hung = _watch(worker, Path(scratch, "input"))
            for line in Path(scratch, "batches").read_text().splitlines() if Path(scratch, "batches").exists() else ():
                report = json.loads(line)
                findings += report.pop("findings")
                most = max(total["memory_bytes"], report.pop("memory_bytes"))
                total.update(report)
                total["memory_bytes"] = most
            if worker.returncode:
                if worker.returncode == 1:
                    raise SystemExit(Path(scratch, "log").read_text(errors="replace")[-2_000:])
                why = hung or _end(worker.returncode)
                said = Path(scratch, "log").read_text(errors="replace")
                # What ended it and in which thread come first, the batch last.
                findings.append(keep(name, Path(scratch, "input"), why, f"{said[:6_000]}\n[…]\n{said[-2_000:]}"))
                # The batch that ended the worker is not begun again.
                total["batches"] += 1
    total["seconds"] = round(time.monotonic() - began)
    return total, list(dict.fromkeys(findings))


@functools.cache
def _gpus() -> Path:
    """Return the folder of a library with four GPUs, so that plans have some to choose from."""
    import fake_nvml

    # Whoever fuzzes beside this one has a library of its own.
    folder = fake_nvml.build(Path(tempfile.mkdtemp(prefix="wattdock-fuzz-")))
    atexit.register(shutil.rmtree, folder)
    fake_nvml.config(folder, gpus=[fake_nvml.FakeGpu(uuid=fake_nvml.uuid_of(number)) for number in range(4)])
    return folder


def _environ(scratch: str) -> dict[str, str]:
    homes = {"WATTDOCK_HOME": f"{scratch}/home", "WATTDOCK_LEASES": f"{scratch}/leases", "TMPDIR": f"{scratch}/tmp"}
    Path(scratch, "tmp").mkdir()
    # Each thread's own heap would count as a blow-up.
    few = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    homes["LD_LIBRARY_PATH"] = str(_gpus())
    return {**os.environ, **homes, **few, "WATTDOCK_RUNNERS": str(REPO / "tests/runners"), "PYTHONHASHSEED": "0"}


def _watch(worker: subprocess.Popen[bytes], place: Path) -> str:
    """Wait for a worker; end it, and say so, where one input takes too long whatever it does."""
    seen, since = 0, time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(1)
            return ""
        with contextlib.suppress(OSError):
            # What computes, or wants to and does not get a CPU, is ended by the kernel.
            state = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0]
            if (now := place.stat().st_ctime_ns) != seen or state != "S":
                seen, since = now, time.monotonic()
        if time.monotonic() - since > WALL_S:
            worker.send_signal(signal.SIGABRT)
            worker.wait()
            return f"waits for more than {WALL_S} s"


def _end(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"computes for more than {CPU_S} s"
    return f"ends the process: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"


def keep(name: str, place: Path, why: str, more: str) -> str:
    """Keep an input with what it did; return a line about it."""
    folder = FOUND / name / f"{time.strftime('%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    folder.mkdir(parents=True)
    if place.exists():
        shutil.copytree(place, folder / "input", symlinks=True)
    (folder / "why.txt").write_text(f"{why}\n{more}\n", errors="backslashreplace")
    return f"{why}: {folder.relative_to(REPO)}"


# ---- The worker


def _work(name: str, scratch: Path, *, seed: int, seconds: float, inputs: int | None) -> None:
    """Fuzz until the time is over, or so many inputs, and write a line about each batch."""
    from fuzz.targets import TARGETS

    target = TARGETS[name]
    with _alone(scratch):
        (scratch / "seeds").mkdir()
        seeds = target.seeds(scratch / "seeds")
        # What is made once must not count.
        for files in seeds:
            # A busy machine may keep a runner waiting.
            if (said := _run(target, files, scratch)) != "accepted" and _run(target, files, scratch) != "accepted":
                raise AssertionError(f"a valid input was refused: {said}")
        # Not of addresses: JavaScript's engine, which draws charts, reserves many and uses few.
        limit = _memory_bytes("VmData") + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        # What comes before takes its time on a busy machine, and is none of the fuzzer's.
        known, began = set[str](), time.monotonic()
        with (scratch / "batches").open("w") as reports:
            # What caches keep of one input after the other is no input's: another worker goes on then.
            while time.monotonic() - began < seconds and _memory_bytes("VmData") < limit - MEMORY_BYTES * 3 // 4:
                until = float("inf") if inputs else began + seconds
                report = _batch(target, seeds, seed, scratch, known, name, until=until, most=inputs or BATCH)
                reports.write(json.dumps(report) + "\n")
                reports.flush()
                seed += 1
                if inputs:
                    break


def _batch(
    target: Target, seeds: list[Files], seed: int, scratch: Path, known: set[str], name: str, *, until: float, most: int
) -> dict[str, Any]:
    """Run some inputs, the same ones with the same seed; a failure whose place is known already is passed over."""
    import hypothesis

    counts: Counter[str] = Counter(batches=1, inputs=0, accepted=0, memory_bytes=0)
    findings: list[str] = []
    last: list[BaseException] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=most,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
    )
    @hypothesis.given(target.inputs(seeds))
    def attempt(files: Files) -> None:
        # Not while a failure is made smaller, which would not understand.
        if time.monotonic() > until and not last:
            return
        counts["inputs"] += 1
        try:
            counts["accepted"] += _run(target, files, scratch) == "accepted"
            counts["memory_bytes"] = max(counts["memory_bytes"], _memory_bytes("VmHWM") - MEASURED["before_bytes"])
        except Exception as error:
            if _place(error) in known:
                return
            last[:] = [error]
            raise

    try:
        attempt()
    except Exception:
        if not last:
            raise
        failure = last[-1]
        known.add(_place(failure))
        trace = "".join(traceback.format_exception(failure))
        findings.append(keep(name, scratch / "input", _place(failure), trace))
    return {**counts, "findings": findings}


def _run(target: Target, files: Files, scratch: Path) -> str:
    """Lay out one input and run it; the kernel ends the process where it computes for too long."""
    folder = scratch / "run"
    kept = scratch / "input"
    for place in (folder, kept):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name, content in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
    # The peak from here on.
    Path("/proc/self/clear_refs").write_text("5")
    MEASURED["before_bytes"] = _memory_bytes("VmHWM")
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        return outcome(target, folder)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _place(error: BaseException) -> str:
    """Return what was raised where in wattdock: the same for the same mistake."""
    if told := re.findall(r"/wattdock/([a-z_/]+\.py)\\?\", line (\d+)", str(error)):
        # Of a traceback that a command has printed.
        return f"{type(error).__name__} at {':'.join(told[-1])}"
    frames = traceback.extract_tb(_root(error).__traceback__)
    ours = [frame for frame in frames if "/coordinator/wattdock/" in frame.filename] or frames
    frame = ours[-1]
    return f"{type(_root(error)).__name__} in {frame.filename.rpartition('/wattdock/')[2]}:{frame.lineno}"


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None and type(error).__name__ != "BrokenError":
        error = error.__cause__
    return error


@contextlib.contextmanager
def _alone(scratch: Path) -> Any:
    """Keep the process to `scratch`, and its disk's flushing out of the time that inputs take."""
    from unittest.mock import patch

    with patch("os.fsync"), contextlib.chdir(scratch):
        yield


def _memory_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith(name)).split()[1])


if __name__ == "__main__":
    sys.exit(main())
