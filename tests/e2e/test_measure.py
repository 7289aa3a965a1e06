"""`wattdock measure`: commands of a user's own, on simulated GPUs of known power."""

from __future__ import annotations

import json
import re
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from command import REPO, WATTDOCK, commit_all, on_gpus
from contract.runner_process import PYTORCH_PYTHON
from fake_nvml import FakeGpu, FakeProcess, Segment
from unprivileged import give_to_user

from wattdock.clock import NS_PER_S

if TYPE_CHECKING:
    from command import Command

POWER_W = 300.0
# What `spans/wattdock_spans.py` does for a script, in a few lines.
MARKS = """
import json, os, sys, time
path = os.path.join(os.environ["WATTDOCK_SPANS"], f"{os.getpid()}-0.jsonl")
def mark(*line):
    with open(path, "a") as file: file.write(json.dumps(line) + "\\n")
now = time.monotonic_ns
"""
TRAIN = (
    MARKS
    + """
time.sleep(0.5)
for epoch in range(2):
    begin = now()
    for step in range(10):
        time.sleep(0.1)
        mark("step", now(), 1)
        mark("work", now(), {"samples": 32, "tokens": 4096})
    mark("span", "epoch", begin, now(), 1)
print("loss 0.5")
"""
)


def gpus(wattdock: Command, *profiles: Segment) -> dict[str, str]:
    """Return the variables under which the user sees one simulated GPU for each power profile."""
    library = fake_nvml.build(wattdock.home / "nvml")
    process = FakeProcess(0, memory_bytes=0)
    made = [
        FakeGpu(uuid=fake_nvml.uuid_of(i), profile=(profile,), processes=(process,), memory_used_bytes=0)
        for i, profile in enumerate(profiles, 1)
    ]
    fake_nvml.config(library, gpus=made)
    for path in (library, *library.rglob("*")):
        give_to_user(path)
    return {"LD_LIBRARY_PATH": str(library)}


def script(wattdock: Command, text: str) -> str:
    path = wattdock.folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def measured(wattdock: Command, *words: str, env: dict[str, str]) -> dict[str, Any]:
    """Measure, and return the newest result, whose checks advise no setting of an engine: a command is refused it."""
    done = wattdock("measure", *words, env=env)
    assert done.returncode == 0, done.stderr
    result = wattdock.results()[-1]
    remedies = [check["remedy"] or "" for check in result["audit"]["checks"]]
    assert not [remedy for remedy in remedies if "workload." in remedy or "warmup." in remedy]
    return result


def test_joules_per_sample_and_per_span_are_those_of_a_constant_power(wattdock: Command) -> None:
    """Two GPUs of 300 and 100 W: the whole run, the spans that count, each GPU's part; what the script prints stays."""
    env = gpus(wattdock, fake_nvml.constant(POWER_W), fake_nvml.constant(100.0))
    words = ("--gpus", "count:2", "--unit", "samples", "--", sys.executable, script(wattdock, TRAIN))
    result = measured(wattdock, "--restarts", "3", "--within", "epoch", *words, env=env)
    work, budget = result["work"], result["budget"]
    [epochs] = work["marked"]
    assert (work["unit"], work["count"], work["others"]) == ("samples", 1920, {"steps": 60, "tokens": 245_760})
    assert (epochs["name"], epochs["count"], work["malformed_marks"]) == ("epoch", 6, 0)
    assert epochs["total_j"] == pytest.approx(400 * epochs["duration_s"], rel=0.01)
    assert epochs["energy_per_span_j"] == pytest.approx(epochs["total_j"] / 6)
    assert list(epochs["per_gpu_j"].values()) == pytest.approx(
        [epochs["total_j"] * 3 / 4, epochs["total_j"] / 4], rel=0.01
    )
    windows = [each for each in result["energy"]["windows"]["passes"] if each["window"] == "marked"]
    seconds = sum(each["duration_s"] for each in windows)
    assert budget["measured"] == pytest.approx(400 * seconds / 1920, rel=0.01)
    assert budget["unit"] == "samples"
    assert budget["interval"][0] < budget["energy_per_unit_j"] < budget["interval"][1]
    assert result["energy"]["total_j"] == pytest.approx(400 * result["performance"]["duration_s"], rel=0.01)
    # Power never changes here, so nothing is above idle.
    assert result["energy"]["net_j"] == pytest.approx(0, abs=0.02 * result["energy"]["total_j"])
    checks = {check["name"]: check["status"] for check in result["audit"]["checks"]}
    passed = ("work of the runs", "processes on the GPUs", "meter", "clock", "measured window")
    assert {name: checks[name] for name in passed} == dict.fromkeys(passed, "pass")
    assert checks["command"] == checks["software"] == "fail"
    wattdock("report", "results", "-o", "x.html")
    page = (wattdock.folder / "x.html").read_text()
    assert all(text in page for text in ("Marked spans", "<td>epoch</td>", f"{epochs['energy_per_span_j']:.4g}"))
    [log] = wattdock.folder.glob("results/2*/runner.log")
    assert log.read_text() == "loss 0.5\n" * 3


RANKS = """
import json, os, sys, time
def rank(number):
    marks = open(os.path.join(os.environ["WATTDOCK_SPANS"], f"{os.getpid()}-{number}.jsonl"), "w")
    begin = time.monotonic_ns()
    for step in range(20):
        time.sleep(0.2)
        marks.write(json.dumps(["step", time.monotonic_ns(), 1]) + "\\n")
        marks.write(json.dumps(["work", time.monotonic_ns(), {"samples": 4}]) + "\\n")
    marks.write(json.dumps(["span", "epoch", begin, time.monotonic_ns(), 1]) + "\\n")
for number in range(2 * int(sys.argv[1]) - 1):
    if os.fork() == 0:
        rank(number)
        os._exit(0)
rank(99)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


def test_eight_gpus_with_two_ranks_each_are_summed_and_told_apart(wattdock: Command) -> None:
    """Of 100 to 800 W; the square wave of one has its mean over whole periods within what timing allows."""
    powers = [100.0 * number for number in range(1, 8)]
    env = gpus(wattdock, *map(fake_nvml.constant, powers), fake_nvml.square(600.0, 1000.0, 0.4, 0.5))
    words = ("--gpus", "count:8", "--unit", "samples", "--", sys.executable, script(wattdock, RANKS), "{gpus}")
    result = measured(wattdock, *words, env=env)
    work, checks = result["work"], {check["name"]: check["figure"] for check in result["audit"]["checks"]}
    # Nothing tells samples of each rank's own from the same ones.
    assert checks["work of the runs"] == "1,280 samples, counted by 16 processes"
    [epoch] = work["marked"]
    assert (work["count"], work["others"], epoch["count"]) == (16 * 20 * 4, {"steps": 20}, 1)
    joules = [watts * epoch["duration_s"] for watts in (*powers, 800.0)]
    assert list(epoch["per_gpu_j"].values()) == pytest.approx(joules, rel=0.02)
    assert epoch["total_j"] == pytest.approx(sum(joules), abs=4 * epoch["timing_j"])


# A command, what `wattdock measure` ends with, and what it says.
FAULTS: dict[str, tuple[str, int, str]] = {
    "fails": ("sys.exit(3)", 5, "the command exited with code 3"),
    "is killed": ("os.kill(os.getpid(), 9)", 5, "the command was killed by SIGKILL"),
    "hangs": ("mark('step', now(), 1); time.sleep(600)", 5, "the command has marked nothing more for 3 s"),
    "marks what is to come": ("mark('step', now() + 10**12, 1)", 5, "marks lie outside its run"),
    "counts nothing": (
        "mark('work', now(), {'tokens': 7})",
        0,
        "unknown samples; the command counted no samples, but tokens",
    ),
    "writes what is no mark": (
        "mark('work', now(), {'samples': 7}); mark('work', now(), {'samples': -1})",
        0,
        "7 samples; 1 lines are no marks",
    ),
    "marks work after the spans that count": (
        """t = now(); mark('work', now(), {'samples': 7}); mark('span', 'epoch', t, now(), 1)
time.sleep(.01); mark('work', now(), {'samples': 5})""",
        0,
        "7 samples; 5 more were marked after the spans that count",
    ),
    "is cut off within a mark": (
        "mark('work', now(), {'samples': 7}); open(path, 'a').write('[\"work\", 12')",
        0,
        "7 samples (limit",
    ),
    "leaves a process": (
        "mark('work', now(), {'samples': 7}); os.system('setsid sleep 600 & sleep 1')",
        0,
        "exited with code 0, and 1 of its processes outlived it and were killed: sleep",
    ),
    # After it, torchrun tells of each rank, in more lines than a row keeps.
    "lacks memory of a GPU": (
        """print('[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.')
print('  exitcode: -15\\n' * 100); sys.exit(1)""",
        5,
        "with code 1: [rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_whatever_a_command_does_is_a_row_with_its_cause_and_nothing_is_left_running(
    wattdock: Command, name: str
) -> None:
    text, code, said = FAULTS[name]
    within = ("--within", "epoch") * ("epoch" in text)
    words = ("measure", "--unit", "samples", *within, "--set", "timeouts.stall_s=3", "--", sys.executable)
    done = wattdock(*words, script(wattdock, MARKS + text))
    [result] = wattdock.results()
    shown = wattdock("show", "--checks", next(wattdock.folder.glob("results/2*")).name).stdout
    assert done.returncode == code, done.stderr[-2000:]
    assert said in (done.stderr if code else shown + json.dumps(result["environment"]["runner"]["warnings"]))
    assert ("outlived it" in done.stderr) == ("outlived it" in said)
    assert result["status"] == ("failed" if code else "ok")
    assert ("memory" in name) == (bool(code) and result["error"]["cause"] == "out of GPU memory")
    assert "Traceback" not in done.stderr
    assert wattdock.left_after() == []


def test_a_gigabyte_of_output_is_passed_on_and_takes_no_memory_of_its_size(wattdock: Command) -> None:
    """Lines of 1 KiB, of which the log keeps the begin and the end; the coordinator takes less than half of it."""
    text = "mark('work', now(), {'samples': 7}); [print('x' * 1023) for _ in range(1 << 20)]"
    words = ("--unit", "samples", "--", sys.executable, script(wattdock, MARKS + text))
    passed_on = most_bytes = 0
    with wattdock.start("measure", *words, stderr=PIPE, stdout=DEVNULL) as running:
        assert running.stderr is not None
        while part := running.stderr.read(1 << 22):
            passed_on += part.count("x")
            [coordinator] = [pid for pid, line in wattdock.processes().items() if f"{WATTDOCK} measure" in line] or [0]
            with suppress(FileNotFoundError):
                status = Path(f"/proc/{coordinator}/status").read_text()
                most_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    [result], [log] = wattdock.results(), wattdock.folder.glob("results/2*/runner.log")
    assert (running.returncode, result["work"]["count"], passed_on) == (0, 7, 1023 << 20)
    assert 0 < most_bytes < 1 << 29
    assert log.read_text().count("x") < 2_000_000


GPU_WORK = (
    MARKS
    + """
# The GPU works in the first half of each period: the epoch lies within one such half, the run does not.
origin_ns, period_ns = map(int, sys.argv[1:])
time.sleep((period_ns - (now() - origin_ns) % period_ns) / 1e9 + 0.2)
begin = now()
time.sleep(3)
mark("work", now(), {"samples": 64})
mark("span", "epoch", begin, now(), 1)
time.sleep(6)
"""
)


def test_conditions_of_gpus_are_those_of_the_spans_that_count(wattdock: Command) -> None:
    """400 W in the spans, of which joules above idle follow; in the run the GPU is idle for more than a third."""
    origin_ns, period = time.monotonic_ns(), 14
    gpu = FakeGpu(profile=(fake_nvml.square(100.0, 400.0, period, 0.5),), processes=(FakeProcess(0, memory_bytes=0),))
    env = on_gpus(wattdock, gpu, origin_ns=origin_ns)
    train = (sys.executable, script(wattdock, GPU_WORK), str(origin_ns), str(period * NS_PER_S))
    result = measured(wattdock, "--unit", "samples", "--within", "epoch", "--", *train, env=env)
    [board], energy = result["gpus"].values(), result["energy"]
    [check] = [check for check in result["audit"]["checks"] if check["name"] == "work for the GPUs"]
    [window] = [each for each in energy["windows"]["passes"] if each["window"] == "marked"]
    assert (check["status"], board["worst_pass_busy_share"]) == ("info", 1)
    assert board["mean_power_w"] == pytest.approx(400, rel=0.01)
    [idle] = energy["idle_baselines"]
    net_w = 400 - idle["mean_power_w"]
    assert energy["net_j"] == pytest.approx(net_w * window["duration_s"], abs=0.01 * 400 * window["duration_s"])


def test_a_command_is_of_a_commit_only_where_its_checkout_has_no_new_file(wattdock: Command) -> None:
    """A script that git does not know is named; what git ignores and what wattdock itself wrote count for nothing."""
    folder = wattdock.folder
    (folder / "out").mkdir()
    for name, text in {"train.py": "open('out/weights', 'w')", ".gitignore": "out/"}.items():
        (folder / name).write_text(text)
    give_to_user(folder / "out")
    commit_all(folder)
    (folder / "new.py").touch()
    for name, status, changes in (("new.py", "fail", "-dirty (new.py);"), ("train.py", "pass", ";")):
        if status == "pass":
            (folder / "new.py").unlink()
        checks = measured(wattdock, "--", sys.executable, name, env={})["audit"]["checks"]
        [check] = [check for check in checks if check["name"] == "command"]
        assert (check["status"], check["figure"][40:].partition(" /")[0]) == (status, changes)
        assert f"; {name} " in check["figure"]
    assert (folder / "out/weights").exists()


def test_a_file_that_a_command_imports_and_that_changes_between_restarts_is_named(wattdock: Command) -> None:
    """The first restart's checkout is the commit's, the second's is not, though no word names the file."""
    folder = wattdock.folder
    for name, text in {"train.py": "import helper; open('helper.py', 'a').write('#')", "helper.py": ""}.items():
        (folder / name).write_text(text)
    give_to_user(folder / "helper.py")
    (folder / ".gitignore").write_text("__pycache__/")
    commit_all(folder)
    checks = measured(wattdock, "--restarts", "2", "--", sys.executable, "train.py", env={})["audit"]["checks"]
    [check] = [check for check in checks if check["name"] == "environment of the restarts"]
    assert check["status"] == "fail"
    assert re.search(r"model revision: \w{40} \(restart 1\), \w{40}-dirty \(helper.py\) \(restart 2\)", check["figure"])


def test_a_c_program_and_a_build_run_as_they_are_typed(wattdock: Command) -> None:
    """Each in its folder, with what its user's shell has; nothing but the command itself is counted."""
    (wattdock.folder / "a.c").write_text('#include <stdio.h>\nint main(void) { puts("from C"); return 0; }\n')
    (wattdock.folder / "Makefile").write_text("all: one two\none two:\n\tcc -o $@ a.c\n")
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    for words, made in ((("make", "-j2"), "two"), (("./one",), "one")):
        done = wattdock("measure", "--restarts", "2", "--", *words, env=env)
        assert done.returncode == 0, done.stderr
        assert (wattdock.folder / made).exists()
        result = wattdock.results()[-1]
        assert (result["work"]["unit"], result["work"]["count"], result["budget"]) == ("runs", 2, None)
        assert result["energy"]["reason"]
        assert result["environment"]["launcher_reason"] == "no image is named"
        assert " 2 runs, " in done.stdout
    assert done.stderr.count("from C\n") == 2
    for amount, count in (((), 1), (("--unit", "samples_a", "--count", "7"), 7)):
        work = measured(wattdock, "--within", "epoch", *amount, "--", sys.executable, script(wattdock, TRAIN), env={})[
            "work"
        ]
        assert (work["count"], work["late"]) == (count, 0)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--unit", "steps", "--within", "ep"), "no span 'ep' was marked, but epoch: give one of these to --within"),
        (("--unit", "dogs"), "the command counted no dogs, but samples, steps, tokens"),
    ],
)
def test_work_that_nothing_counted_is_unknown_with_the_reason_and_never_0(
    wattdock: Command, words: tuple[str, ...], reason: str
) -> None:
    """In the row, on the terminal, in the check; a span without joules was marked all the same."""
    shown = wattdock("measure", "--quiet", *words, "--", sys.executable, script(wattdock, TRAIN)).stdout
    [result], unit = wattdock.results(), words[1]
    assert (result["work"]["count"], result["work"]["reason"]) == (None, reason)
    assert result["performance"]["output_tokens_per_s"] is None
    assert (f"unknown {unit} in 1 run, " in shown, f" unknown: {reason}" in shown) == (True, True), shown
    assert "of the runs' time: joules unknown (" in shown
    [check] = [check for check in result["audit"]["checks"] if check["name"] == "work of the runs"]
    assert (check["status"], check["figure"]) == ("fail", f"unknown {unit}; {reason}")
    listed = wattdock("results", "query", "SELECT work, units_per_s FROM results", "--json").stdout
    assert json.loads(listed) == [{"work": None, "units_per_s": None}]


@pytest.mark.skipif(not PYTORCH_PYTHON.exists(), reason=f"no PyTorch environment at {PYTORCH_PYTHON}")
def test_ranks_of_a_training_are_one_run_and_one_that_dies_fails_it(wattdock: Command) -> None:
    """Two ranks on the CPU share each step; spans lie within the run, and joules are null with the reason."""
    env = {"PYTHONPATH": str(REPO / "spans"), "OMP_NUM_THREADS": "1"}
    torchrun = [str(PYTORCH_PYTHON), *"-m torch.distributed.run --standalone --nproc-per-node 2".split()]
    sizes = "--global-batch 8 --batch-size 4 --length 32 --epochs 2 --steps 3".split()
    words = ("--unit", "samples", "--within", "epoch", "--", *torchrun)
    result = measured(wattdock, *words, str(REPO / "examples/train/ddp.py"), *sizes, env=env)
    work, marked = result["work"], {each["name"]: each for each in result["work"]["marked"]}
    assert (work["count"], work["others"]["steps"]) == (2 * 3 * 8, 2 * 3)
    assert {name: marked[name]["count"] for name in ("load", "epoch", "step")} == {"load": 1, "epoch": 2, "step": 6}
    assert marked["step"]["duration_s"] <= marked["epoch"]["duration_s"] < result["performance"]["duration_s"]
    assert (marked["step"]["total_j"], result["budget"]) == (None, None)
    assert "no NVIDIA driver" in marked["step"]["reason"]
    killed = "import os, time; os.environ['RANK'] == '1' and os.kill(os.getpid(), 9); time.sleep(600)"
    done = wattdock("measure", "--", *torchrun, script(wattdock, killed), env=env)
    assert (done.returncode, wattdock.results()[-1]["status"]) == (5, "failed"), done.stderr
    assert "output " in done.stdout
    assert wattdock.left_after() == []
