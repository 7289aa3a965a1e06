"""Fuzz what reads files and messages of others: `make fuzz ARGS='--target result --batches 20 --seed 1'`.

Each batch runs in a process of its own, which may take 1 GB more than it does for valid inputs. An input ends with a
result or one clear error; another exception, a crash, or more than the time allowed is a finding. The smallest input
that shows it is kept below build/fuzz/<target>/.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import hypothesis

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / folder) for folder in ("tests", "runners/common", "runners/llamacpp")]
# Transformers, which runners read folders with; whatever the suite has itself comes first.
sys.path += map(str, REPO.glob("runners/pytorch/.venv/lib/python3*/site-packages"))

import fake_nvml  # noqa: E402
from fuzz.commands import REFUSALS  # noqa: E402
from fuzz.targets import TARGETS, Target  # noqa: E402

from wattdock.errors import WattdockError  # noqa: E402

if TYPE_CHECKING:
    from fuzz.mutators import Files

MEMORY_BYTES = 1_000_000_000
# Of one input: of computing, which the kernel ends, and of waiting. No machine is that busy.
CPU_S, WALL_S = 20, 600
FOUND = REPO / "build/fuzz"


def main() -> int:
    """Fuzz the targets one after another; return 1 if anything was found."""
    options = _options()
    if options.worker:
        _work(TARGETS[options.target[0]], options.worker, seed=options.seed, inputs=options.inputs)
        return 0
    found = 0
    for name in options.target or TARGETS:
        for seed in range(options.seed, options.seed + options.batches):
            with tempfile.TemporaryDirectory(prefix="wattdock-fuzz-") as scratch:
                words = ("--target", name, "--worker", scratch, "--seed", seed, "--inputs", options.inputs)
                done = _worker(Path(scratch), *map(str, words))
                said = done.stdout.strip()
                if done.returncode:
                    found += 1
                    kept = _kept(name, Path(scratch), said)
                    said = f"ended with {done.returncode}: {kept}\n{said[-6_000:]}"
            print(f"{name} seed {seed}: {said if done.returncode else said.splitlines()[-1]}", flush=True)
    return int(found > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="one of them; all unless given")
    parser.add_argument("--inputs", type=int, default=500, help="of a batch; the same for a seed")
    parser.add_argument("--batches", type=int, default=1, help="of each target; the seed grows by one")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _worker(scratch: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a batch in a process of its own, which sees four GPUs, so that plans have some to choose from."""
    library = fake_nvml.build(scratch / "nvml")
    fake_nvml.config(library, gpus=[fake_nvml.FakeGpu(uuid=fake_nvml.uuid_of(number)) for number in range(4)])
    (scratch / "tmp").mkdir()
    env = {"WATTDOCK_HOME": f"{scratch}/home", "WATTDOCK_LEASES": f"{scratch}/leases", "TMPDIR": f"{scratch}/tmp"}
    env |= {"LD_LIBRARY_PATH": str(library), "WATTDOCK_RUNNERS": str(REPO / "tests/runners"), "PYTHONHASHSEED": "0"}
    # Each thread's own heap would count as a blow-up.
    env |= {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = ["env", *(f"{name}={value}" for name, value in env.items()), sys.executable, __file__, *words]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )


def _kept(name: str, scratch: Path, said: str) -> Path:
    """Keep the input that a batch ended with, and what was said; return its folder."""
    folder = Path(tempfile.mkdtemp(prefix="", dir=_made(FOUND / name)))
    if (scratch / "input").exists():
        shutil.copytree(scratch / "input", folder / "input", symlinks=True)
    (folder / "why.txt").write_text(said, errors="backslashreplace")
    return folder


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# ---- The worker


def _work(target: Target, scratch: Path, *, seed: int, inputs: int) -> None:
    """Run some inputs, the same ones with the same seed, and say how many were accepted."""
    faulthandler.enable()
    counts: Counter[str] = Counter()
    # A disk's flushing is none of the time that inputs take.
    with patch("os.fsync"), contextlib.chdir(scratch):
        seeds = target.seeds(_made(scratch / "seeds"))
        # What is made once must not count.
        for files in seeds:
            # A busy machine may keep a runner waiting.
            if (said := _run(target, files, scratch)) != "accepted" and _run(target, files, scratch) != "accepted":
                raise AssertionError(f"a valid input was refused: {said}")
        # Not of addresses: JavaScript's engine, which draws charts, reserves many and uses few.
        limit = _data_bytes() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=inputs,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
            suppress_health_check=list(hypothesis.HealthCheck),
            report_multiple_bugs=False,
        )
        @hypothesis.given(target.inputs(seeds))
        def attempt(files: Files) -> None:
            counts["inputs"] += 1
            counts["accepted"] += _run(target, files, scratch) == "accepted"

        try:
            attempt()
        except Exception as error:  # noqa: BLE001
            # The input itself, which comes last, may have megabytes.
            raise SystemExit("".join(traceback.format_exception(error))[:6_000]) from None
    print(f"{counts['inputs']} inputs, {counts['accepted']} accepted")


def _run(target: Target, files: Files, scratch: Path) -> str:
    """Lay out one input and run it; return "accepted", or the one line of its refusal."""
    for place in (scratch / "run", scratch / "input"):
        shutil.rmtree(place, ignore_errors=True)
        for name, content in files.items():
            (_made((place / name).parent) / (place / name).name).write_bytes(content)
    REFUSALS.clear()
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    faulthandler.dump_traceback_later(WALL_S, exit=True)
    try:
        target.run(_made(scratch / "run"))
    except WattdockError as error:
        return str(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
    return "".join(REFUSALS) or "accepted"


def _data_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmData")).split()[1])


if __name__ == "__main__":
    sys.exit(main())
