"""Disturb four coordinators that share a machine, and look for what is lost or left: `make soak ARGS='--minutes 60'`.

Each measures short studies on simulated GPUs, with the fake backend in a real runner process, and resumes each until it
is done. Signals, stopped processes, a full disk, removed folders and a stepped clock come at random; afterwards every
study is resumed in peace. Lost is a pass, a result or a journal line that was on disk and is in no result; left is a
process, a lease or a folder. As root, they run as an unprivileged user with a small disk of their own, which becomes
full. Exits with 9 where anything was lost or left.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock.errors import ExitCode
from wattdock.launch.runners import REPO

sys.path.append(str(REPO / "tests"))

import fake_nvml
from command import Command
from unprivileged import UID, give_to_user, popen_as_user, unable, user_home

if TYPE_CHECKING:
    from collections.abc import Iterator

COORDINATORS, GPUS = 4, 2
DISK_MB, MEAN_PAUSE_S, LOOK_S = 500, 2.0, 0.2
# No command takes so long unless it hangs.
LIMIT_S = 600.0
MARK = b"WATTDOCK_SOAK="
STEPPED_CLOCK = Path(__file__).with_name("stepped_clock.c")
Pass = tuple[str, int, int, int]


@dataclass(frozen=True)
class Process:
    """A process of the soak; `role` says whether it is the coordinator itself, its keeper or its runner."""

    pid: int
    coordinator: int
    role: str

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has just ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


@dataclass
class World:
    """Folders, simulated GPUs and the wall clock that all coordinators share."""

    command: Command
    results: Path
    step: ctypes.c_long
    environ: dict[str, str]

    @property
    def temporary(self) -> Path:
        """Their temporary folder."""
        return self.command.home / "tmp"

    def start(self, coordinator: int, *words: str, log: Any) -> subprocess.Popen[Any]:
        """Start a command of one coordinator's."""
        env = self.command.env(self.environ | {"WATTDOCK_SOAK": str(coordinator)})
        return popen_as_user(
            self.command.words(*words), env=env, cwd=self.command.folder, stdout=log, stderr=subprocess.STDOUT
        )

    def processes(self) -> list[Process]:
        """Return what runs."""
        found = []
        # Between the fork and the program that a coordinator starts, there are two of it; one of them is the program.
        roles = {"keeper.py": "keeper", "wattdock_runner": "runner", "/wattdock ": "coordinator"}
        for pid, words in self.command.processes().items():
            with suppress(OSError):
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                numbers = [int(line.removeprefix(MARK)) for line in environ if line.startswith(MARK)]
                role = next((role for word, role in roles.items() if word in words), "other")
                found += [Process(pid, number, role) for number in numbers if words]
        return found


@dataclass
class Seen:
    """What has been on disk; `look` adds what is there now."""

    passes: set[Pass] = field(default_factory=set)
    results: set[str] = field(default_factory=set)
    journals: dict[Path, bytes] = field(default_factory=dict)

    def look(self, world: World) -> None:
        """Take note of everything whole."""
        for file in world.results.glob("studies/*/records/*/record.json"):
            if file.parent.name[0] != "." and (record := _json(file)):
                experiment, restart = file.parent.name[:16], record["restart"]
                spans = ((measured["index"], measured["span"]["start_ns"]) for measured in record["passes"])
                self.passes |= {(experiment, restart, number, start_ns) for number, start_ns in spans}
        self.results |= {file.parent.name for file in world.results.glob("[!.]*/result.json")}
        for file in world.results.glob("studies/*/journal.jsonl"):
            with suppress(OSError):
                content = file.read_bytes()
                self.journals[file] = content[: content.rfind(b"\n") + 1]

    def lost(self, world: World) -> Iterator[str]:
        """Yield what is in no stored result."""
        stored: set[Pass] = set()
        for file in world.results.glob("[!.]*/result.json"):
            result = _json(file)
            if result is None:
                yield f"{file} cannot be read"
                continue
            for span in result["spans"]:
                if span["pass"] is not None:
                    stored.add((result["experiment_id"][:16], span["restart"], span["pass"], span["start_ns"]))
        yield from (
            f"pass {number} of restart {restart} of {name}" for name, restart, number, _ in self.passes - stored
        )
        yield from (f"result {name}" for name in self.results if not (world.results / name / "result.json").exists())
        yield from (str(file) for file, lines in self.journals.items() if not file.read_bytes().startswith(lines))


def _json(file: Path) -> Any:
    """Return a document; None where it goes or is replaced at this moment."""
    with suppress(OSError, ValueError):
        return json.loads(file.read_bytes())
    return None


@dataclass(eq=False)
class Coordinator(threading.Thread):
    """Measures study after study until `over`; `ends` counts how its commands ended, `faults` what is wrong with it."""

    world: World
    number: int
    seed: int
    over: threading.Event
    studies: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        """Measure."""
        while not self.over.is_set():
            self.studies.append(self._write())
            while not self.over.is_set() and not self.resume(self.studies[-1]):
                pass

    def resume(self, study: str) -> bool:
        """Go on with a study; return whether nothing is left of it."""
        log = self.world.command.folder / f"{study}.log"
        with log.open("ab") as output:
            began = output.tell()
            process = self.world.start(self.number, "run", f"{study}.yaml", "--resume", "--quiet", log=output)
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                self.faults.append(f"{study} hangs, see {log}")
                process.kill()
                code = process.wait()
        said = log.read_bytes()[began:].decode(errors="replace")
        self.ends[signal.Signals(-code).name if code < 0 else str(code)] += 1
        if "Traceback" in said or code == ExitCode.BUG:
            self.faults.append(f"{study} ended with {code}, see {log.name}")
        folders = [file.parent for file in self.world.results.glob(f"studies/*-{study}-*/journal.jsonl")]
        return any(b'"event": "ended"' in (folder / "journal.jsonl").read_bytes() for folder in folders)

    def _write(self) -> str:
        """Write a study of two experiments with restarts and passes of about a second; return its name."""
        name = f"c{self.number}s{len(self.studies)}"
        draw = random.Random(f"{self.seed} {name}")
        # Equal studies would be one to `--resume`.
        seed = COORDINATORS * len(self.studies) + self.number
        experiment = {
            "backend": "fake",
            "model": "shape:tiny-llama",
            "gpus": [draw.randrange(GPUS)],
            "exclusive": draw.choice(["gpus", "gpus", "machine"]),
            "wait_s": LIMIT_S / 2,
            "workload": {"batch_size": 2, "max_output_tokens": draw.randint(2, 20), "seed": seed},
            "warmup": {"passes": 0},
            "idle": {"duration_s": 0},
            "repeats": {"restarts": 2, "passes": 2},
            "fake": {"step_s": 0.05},
        }
        study = {"defaults": experiment, "sweep": {"fake.load_s": [0.0, 0.01]}}
        file = self.world.command.folder / f"{name}.yaml"
        file.write_text(json.dumps(study))
        give_to_user(file)
        return name


@dataclass
class Trouble:
    """What is done to them, at random; `done` counts each."""

    world: World
    draw: random.Random
    done: Counter[str] = field(default_factory=Counter)

    def make(self) -> None:
        """Do one thing."""
        kinds = [self._kill] * 4 + [self._stop] * 3 + [self._interrupt] * 3 + [self._step, self._remove, self._remove]
        kinds += [self._fill] * 2 if self.world.results.is_mount() else []
        self.draw.choice(kinds)()

    def _victim(self, *roles: str) -> Process | None:
        found = [process for process in self.world.processes() if process.role in roles]
        return self.draw.choice(sorted(found, key=lambda process: process.pid)) if found else None

    def _kill(self) -> None:
        if victim := self._victim(self.draw.choice(["coordinator", "coordinator", "runner", "keeper"])):
            victim.signal(signal.SIGKILL)
            self.done[f"SIGKILL {victim.role}"] += 1

    def _stop(self) -> None:
        if victim := self._victim("coordinator", "runner", "keeper"):
            victim.signal(signal.SIGSTOP)
            time.sleep(self.draw.uniform(0.1, 4))
            victim.signal(signal.SIGCONT)
            self.done[f"SIGSTOP {victim.role}"] += 1

    def _interrupt(self) -> None:
        if victim := self._victim("coordinator"):
            number = self.draw.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
            for _ in range(self.draw.choice([1, 2])):
                victim.signal(number)
                time.sleep(self.draw.uniform(0, 0.5))
            self.done[number.name] += 1

    def _step(self) -> None:
        self.world.step.value = self.draw.randint(-(10**6), 10**6)
        self.done["clock stepped"] += 1

    def _remove(self) -> None:
        """Remove a scratch or socket folder that is in use, as a cleaner of temporary folders does."""
        if folders := sorted(self.world.temporary.glob("wattdock-*")):
            folder = self.draw.choice(folders)
            shutil.rmtree(folder, ignore_errors=True)
            self.done["scratch removed" if folder.name.startswith("wattdock-run-") else "socket removed"] += 1

    def _fill(self) -> None:
        ballast = self.world.results / ".ballast"
        free = shutil.disk_usage(self.world.results).free
        with suppress(OSError), ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free - self.draw.choice([0, 4096, 50_000, 200_000])))
        time.sleep(self.draw.uniform(0.5, 4))
        ballast.unlink(missing_ok=True)
        self.done["disk full"] += 1


def left(world: World) -> Iterator[str]:
    """Yield what is there though nothing runs."""
    deadline = time.monotonic() + 60
    while (running := world.processes()) and time.monotonic() < deadline:
        time.sleep(0.5)
    yield from (f"{process.role} {process.pid}" for process in running)
    # The next command and `reap` may still remove something.
    for words in (("reap",), ("gpus", "--json")):
        with (world.command.folder / "last.log").open("w+b") as log:
            world.start(0, *words, log=log).wait(LIMIT_S)
            log.seek(0)
            said = log.read()
    yield from (f"lease {name}" for name in json.loads(said)["leases"])
    yield from map(str, world.temporary.glob("wattdock-[!r]*"))
    yield from map(str, world.temporary.glob("wattdock-run-*"))
    hidden = (place for folder in (world.results, world.command.home / "wattdock") for place in folder.rglob(".*"))
    yield from (str(place) for place in hidden if place.is_dir())


def _world(stack: ExitStack) -> World:
    """Make the folders, a small disk for the results where that is possible, the GPUs and the clock."""
    base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wd", ignore_cleanup_errors=True)))
    base.chmod(0o755)
    home = user_home(base)
    for name in ("work", "work/results", "lib"):
        (home / name).mkdir()
        give_to_user(home / name)
    results = home / "work/results"
    if os.getuid() == 0:
        if reason := unable():
            raise SystemExit(reason)
        size = f"size={DISK_MB}m,uid={UID},gid={UID},mode=755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", results], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", str(results)], check=True)
    library = fake_nvml.build(home / "lib")
    fake_nvml.config(library, gpus=[fake_nvml.FakeGpu(uuid=fake_nvml.uuid_of(number)) for number in range(GPUS)])
    step, built = home / "lib/step", home / "lib/step.so"
    step.write_bytes(bytes(8))
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", built, STEPPED_CLOCK, "-ldl"], check=True)
    environ = {"LD_LIBRARY_PATH": str(library), "LD_PRELOAD": str(built), "WATTDOCK_SOAK_STEP": str(step)}
    with step.open("r+b") as file:
        seconds = ctypes.c_long.from_buffer(mmap.mmap(file.fileno(), 8))
    return World(Command(home, home / "work"), results, seconds, environ)


def _disturb(trouble: Trouble, seen: Seen, minutes: float) -> None:
    """Make trouble for so long, and look at the disk all the while."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            seen.look(trouble.world)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    until = time.monotonic() + 60 * minutes
    while time.monotonic() < until:
        time.sleep(trouble.draw.expovariate(1 / MEAN_PAUSE_S))
        trouble.make()
    over.set()
    looking.join()


def counted(kinds: Counter[str]) -> list[str]:
    """Return a line for each kind."""
    return [f"  {kind}: {count}" for kind, count in sorted(kinds.items())]


def main() -> int:
    """Soak; return 9 if anything was lost or left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    options = parser.parse_args()
    with ExitStack() as stack:
        world, over, seen = _world(stack), threading.Event(), Seen()
        coordinators = [Coordinator(world, number, options.seed, over) for number in range(COORDINATORS)]
        trouble = Trouble(world, random.Random(options.seed))
        for coordinator in coordinators:
            coordinator.start()
        _disturb(trouble, seen, options.minutes)
        over.set()
        world.step.value = 0
        faults = []
        for coordinator in coordinators:
            coordinator.join(LIMIT_S)
            seen.look(world)
            faults += [
                f"{study} is not done after two resumptions in peace"
                for study in coordinator.studies
                if not coordinator.resume(study) and not coordinator.resume(study)
            ]
            faults += coordinator.faults
        faults += [f"lost: {what}" for what in seen.lost(world)]
        faults += [f"left: {what}" for what in left(world)]
        studies = sum(len(coordinator.studies) for coordinator in coordinators)
        if faults:
            kept = REPO / f"build/soak/{time.strftime('%m%d-%H%M%S')}"
            shutil.copytree(world.command.folder, kept, ignore_dangling_symlinks=True)
            faults.append(f"kept: {kept}")
        said = [f"{options.minutes:g} minutes, seed {options.seed}: {studies} studies, {len(seen.results)} results"]
        said += [f"passes seen on disk: {len(seen.passes)}", *counted(trouble.done)]
        ends = sum((coordinator.ends for coordinator in coordinators), Counter[str]())
        said += ["commands ended with:", *counted(ends), *(faults or ["nothing lost, nothing left"])]
        sys.stdout.write("\n".join(said) + "\n")
    return ExitCode.REGRESSION if faults else ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
