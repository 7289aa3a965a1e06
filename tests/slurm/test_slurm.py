"""Studies on a real Slurm of two simulated nodes with two simulated GPUs each, everything as an unprivileged user."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from command import Command
from slurm.cluster import Cluster, missing
from unprivileged import give_to_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
# Ends what hangs.
LONGEST_S = 600.0
# Each node is a machine of its own: its GPUs, its leases.
SETUP = "export LD_LIBRARY_PATH=$HOME/nvml-$SLURMD_NODENAME WATTDOCK_LEASES=$HOME/leases-$SLURMD_NODENAME"
# Twelve experiments of two passes each in nine load groups; the first group's take longer than its task may.
STEPS_S = [*[0.8] * 4, 0.3, 0.31, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09]
EXPERIMENTS = "\n".join(
    f"  - {{name: e{at}, fake: {{step_s: {step_s}}}, workload: {{seed: {at}}}}}" for at, step_s in enumerate(STEPS_S)
)
# A runner is stopped until Slurm acts.
DEFAULTS_OF_ALL = """
defaults:
  backend: fake
  timeouts: {heartbeat_s: 600}
  model: 'shape:tiny-llama'
  exclusive: gpus
  workload: {max_output_tokens: 5, batch_size: 1}
  warmup: {passes: 0}
"""
STUDY = f"""{DEFAULTS_OF_ALL}
  repeats: {{passes: 2}}
experiments:
{EXPERIMENTS}
fleet:
  time: "1"
  end_before_s: 25
  tasks_at_once: 4
  setup: ['{SETUP}']
"""
RUNNER, INTERRUPTED = 5, 130
SLOW, TO_REQUEUE, TO_KILL = 0, 1, 2
ARRAY = 1


# What a user may have set; it would hide jobs, and win over a script's options.
DEFAULTS = {"SBATCH_JOB_NAME": "mine", "SBATCH_NO_REQUEUE": "1", "SQUEUE_PARTITION": "urgent"}


def start(wattdock: Command, slurm: Cluster, *words: str) -> subprocess.Popen[str]:
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "within": slurm.within}
    return wattdock.start(*words, env={**slurm.env, **DEFAULTS}, **how)


def call(wattdock: Command, slurm: Cluster, *words: str) -> tuple[int, str, str]:
    with start(wattdock, slurm, *words) as running:
        out, err = running.communicate(timeout=LONGEST_S)
    return running.returncode, out, err


def wait_until(what: Callable[[], Any]) -> Any:
    """Return the first true answer."""
    deadline = time.monotonic() + LONGEST_S
    while not (answer := what()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return answer


def coordinator(wattdock: Command, task: int) -> int | None:
    """Return the process of a task's coordinator, if it runs."""
    found = (pid for pid, line in wattdock.processes().items() if re.search(rf" fleet task \S+ {task} $", line))
    return next(found, None)


def in_pass(wattdock: Command, task: int) -> int | None:
    """Return the process of a task that has a pass on disk and measures another."""
    records = wattdock.folder.glob(f"results/studies/*/tasks/{task}/records/[!.]*/record.json")
    return coordinator(wattdock, task) if any(records) else None


@pytest.fixture
def local(wattdock: Command, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The same study, measured on this machine meanwhile, with results in a folder of its own."""
    folder = tmp_path / "local"
    for place in (folder, folder / "tmp"):
        place.mkdir()
        give_to_user(place)
    (folder / "leases").mkdir()
    (folder / "leases").chmod(0o1777)
    (folder / "x.yaml").write_text(STUDY)
    env = {"LD_LIBRARY_PATH": str(wattdock.home / "nvml-n1")}
    how: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": (folder / "log").open("w")}
    with (
        how["stderr"],
        Command(folder, folder).start("run", "x.yaml", env=env, reach=[wattdock.home], **how) as running,
    ):
        yield running
        running.terminate()


def wait_for_line(running: subprocess.Popen[str], text: str) -> None:
    """Return once a command has said this on its error stream."""
    assert running.stderr
    lines = list(itertools.takewhile(lambda line: text not in line, running.stderr))
    assert running.poll() is None, "".join(lines)


def by_experiment(results: list[dict[str, Any]]) -> dict[str, int]:
    return {result["experiment_id"]: result["performance"]["output_tokens"] for result in results}


def test_every_experiment_has_one_whole_row_whatever_happens_to_its_tasks(
    wattdock: Command, slurm: Cluster, local: subprocess.Popen[str], tmp_path: Path
) -> None:
    """A task killed, one requeued, one out of time, the controller restarted, the submitter killed."""
    file = wattdock.write(STUDY)
    submitter = start(wattdock, slurm, "run", file, "--on", "slurm")
    wait_until(lambda: in_pass(wattdock, TO_REQUEUE) and in_pass(wattdock, TO_KILL))
    slurm("scontrol", "requeue", f"{ARRAY}_{TO_REQUEUE}")
    os.kill(coordinator(wattdock, TO_KILL) or 0, signal.SIGKILL)
    [own] = [pid for pid, line in wattdock.processes().items() if f"wattdock run {file} --on slurm" in line]
    os.kill(own, signal.SIGKILL)
    submitter.communicate(timeout=LONGEST_S)
    resumed = start(wattdock, slurm, "run", "--on", "slurm", "--resume", "x")
    wait_for_line(resumed, "running")
    slurm.stop("slurmctld")
    wait_for_line(resumed, "asked again")
    slurm.start_controller()
    _, err = resumed.communicate(timeout=LONGEST_S)
    # The killed task is no longer queued, or was queued again when the study was.
    for _ in range(3):
        if resumed.returncode == 0:
            break
        assert (resumed.returncode, "--resume x" in err) == (INTERRUPTED, True), err
        resumed = start(wattdock, slurm, "run", "--on", "slurm", "--resume", "x")
        _, err = resumed.communicate(timeout=LONGEST_S)
    assert resumed.returncode == 0, err
    [study] = wattdock.folder.glob("results/studies/*")
    logs = {int(log.stem): log.read_text() for log in study.glob("tasks/0*.log")}
    assert "queued again" in logs[SLOW]
    assert logs[TO_REQUEUE].count("launcher: process") > 1
    whole = [result for result in wattdock.results() if result["status"] == "ok"]
    assert len(whole) == len(by_experiment(whole)) == 12
    passes = Counter((r["experiment_id"], p["restart"], p["pass"]) for r in whole for p in r["energy"]["passes"])
    assert (len(passes), set(passes.values())) == (24, {1})
    assert {result["study"]["study_id"] for result in wattdock.results()} == {study.name}
    events = Counter(json.loads(line)["event"] for line in (study / "journal.jsonl").read_text().splitlines())
    assert (events["study"], events["stored"] >= 12, events["ended"]) == (1, True, 1)
    never_shared(wattdock.results())
    jobs = [result["environment"]["job"] for result in whole]
    assert {job["node"] for job in jobs} == {"n1", "n2"}
    # A task may have begun while there was no controller.
    told = {(job["exclusive"], job["node_gpus"], job["gpus"]) for job in jobs} - {(None, None, None)}
    assert told == {(False, 2, 1)}
    assert {int(job["id"].partition("_")[2]) for job in jobs} == set(range(9))
    assert local.wait(LONGEST_S) == 0, (tmp_path / "local" / "log").read_text()
    assert by_experiment(whole) == by_experiment(Command(tmp_path, tmp_path / "local").results())


def never_shared(results: list[dict[str, Any]]) -> None:
    """No two passes were measured on one GPU at one time."""
    spans: dict[str, set[tuple[int, int]]] = {}
    for result in results:
        [gpu] = result["environment"]["leased"]
        measured = {(span["start_ns"], span["end_ns"]) for span in result["spans"] if span["name"] == "pass"}
        spans.setdefault(gpu, set()).update(measured)
    assert len(spans) == 4
    for of_gpu in spans.values():
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(sorted(of_gpu)))


def of_passes(passes: int) -> str:
    """Return a study of one load group, of passes of two seconds."""
    return f"""{DEFAULTS_OF_ALL}
  repeats: {{passes: {passes}}}
experiments:
  - {{fake: {{step_s: 0.2}}}}
fleet:
  setup: ['{SETUP}']
"""


ONE, ONE_PASS = of_passes(4), of_passes(1)


def stop_in_pass(wattdock: Command) -> None:
    """Stop the first task's runner, which could be done before Slurm acts; Slurm wakes all that it tells to end."""
    wait_until(lambda: in_pass(wattdock, 0))
    lines = wattdock.processes().items()
    [runner] = [pid for pid, line in lines if "-m wattdock_runner" in line and "keeper" not in line]
    os.kill(runner, signal.SIGSTOP)


def test_a_task_whose_node_is_taken_goes_on_later(wattdock: Command, slurm: Cluster) -> None:
    """Pre-emption by jobs of another partition, with time to store what was measured."""
    file = wattdock.write(ONE)
    running = start(wattdock, slurm, "run", file, "--on", "slurm")
    stop_in_pass(wattdock)
    slurm("sbatch", "--partition=urgent", "--exclusive", "--array=0-1", "--wrap=sleep 5", "--output=/dev/null")
    _, err = running.communicate(timeout=LONGEST_S)
    assert running.returncode == 0, err
    [log] = [file.read_text() for file in wattdock.folder.glob("results/studies/*/tasks/0000.log")]
    assert log.count("launcher: process") == 2
    assert sorted(result["status"] for result in wattdock.results()) == ["interrupted", "ok"]


def test_a_study_that_is_cancelled_stays_so_until_it_is_gone_on_with(wattdock: Command, slurm: Cluster) -> None:
    """No task queues itself again; status, collect and a resumption say where the study stands."""
    file = wattdock.write(ONE)
    submitter = start(wattdock, slurm, "run", file, "--on", "slurm")
    stop_in_pass(wattdock)
    [own] = [pid for pid, line in wattdock.processes().items() if f"wattdock run {file} --on slurm" in line]
    os.kill(own, signal.SIGINT)
    _, err = submitter.communicate(timeout=LONGEST_S)
    assert submitter.returncode == INTERRUPTED
    assert re.search(
        "the tasks go on; to follow them: wattdock run --on slurm --resume x-1; .*: wattdock fleet cancel x-1$", err
    )
    assert coordinator(wattdock, 0)
    running = start(wattdock, slurm, "run", "--on", "slurm", "--resume", "x-1")
    wait_for_line(running, "running")
    code, out, _ = call(wattdock, slurm, "fleet", "cancel", "x")
    assert (code, out) == (0, "x-1: its tasks were told to end\n")
    _, err = running.communicate(timeout=LONGEST_S)
    assert running.returncode == INTERRUPTED, err
    assert "--on slurm --resume x-1" in err
    assert slurm("squeue", "--noheader").split() == []
    code, out, err = call(wattdock, slurm, "fleet", "status", "x", "--json")
    assert code == 0, err
    [task] = json.loads(out)
    assert (task["state"], task["detail"], task["done"], task["passes"]) == ("unfinished", "told to end", 0, 4)
    code, out, err = call(wattdock, slurm, "run", "--on", "slurm", "--resume", "x")
    assert code == 0, err
    assert "wattdock show x-1" in out
    assert call(wattdock, slurm, "fleet", "cancel", "x")[1] == "x-1: none of its tasks is queued\n"
    assert "4 of 4 passes" in call(wattdock, slurm, "fleet", "status", "x")[1]
    assert call(wattdock, slurm, "show", "x-1")[0] == 0


def test_what_slurm_refuses_is_one_line_and_the_study_can_go_on(wattdock: Command, slurm: Cluster) -> None:
    """A partition that is not, more GPUs than any node has; then an experiment fails, and the code is a local run's."""
    dying = "  - {name: dying, fake: {pass_fault: die}}\nfleet:"
    study = ONE_PASS.replace("fleet:", dying)
    for fleet, words, refused in (
        ("partition: nowhere", (), "Invalid partition name specified"),
        ("constraint: h100", (), "Invalid feature specification"),
        ("more: [--mem=9T]", (), "Requested node configuration is not available"),
        ("tasks_at_once: 1", ("--gpus", "count:9"), "Requested node configuration is not available"),
        ("more: [--nope=1]", (), "unrecognized option '--nope=1'"),
    ):
        wrong = wattdock.write(f"{study}  {fleet}\n")
        code, _, err = call(wattdock, slurm, "run", wrong, "--on", "slurm", *words)
        assert code == 4, err
        assert f"{refused}; " in err.splitlines()[-1], err
        assert "correct `fleet:` or `gpus:`" in err, err
    code, _, err = call(
        wattdock, slurm, "run", wattdock.write(study + "  exclusive: true\n"), "--on", "slurm", "--resume"
    )
    assert (code, err.count("died during")) == (RUNNER, 1), err
    assert err.startswith("x-5: ")
    assert sorted(result["status"] for result in wattdock.results()) == ["failed", "ok"]
    jobs = [result["environment"]["job"] for result in wattdock.results()]
    # A task of no GPU has all of the node's, which nobody else could use.
    assert [(job["exclusive"], job["gpus"], job["node_gpus"]) for job in jobs] == [(True, 2, 2)] * 2


def test_a_slurm_that_does_not_answer_is_the_machines_and_one_line(wattdock: Command, slurm: Cluster) -> None:
    """Whether no cluster is known or its controller is gone: nothing in the study is wrong."""
    study = wattdock.write(ONE_PASS)
    known = slurm.env["SLURM_CONF"]
    slurm.env["SLURM_CONF"] = os.devnull
    unknown = call(wattdock, slurm, "run", study, "--on", "slurm")
    slurm.env["SLURM_CONF"] = known
    slurm.stop("slurmctld")
    silent = call(wattdock, slurm, "run", study, "--on", "slurm")
    for (code, _, err), words in ((unknown, "sbatch: "), (silent, "Unable to contact slurm controller")):
        assert code == 3, err
        assert words in err.splitlines()[-1], err
        assert "; see whether `sinfo` answers here" in err.splitlines()[-1], err
        assert ("correct `fleet:`" in err, "Traceback" in err) == (False, False), err
    slurm.start_controller()
    slurm.wait_until_idle()
    assert call(wattdock, slurm, "run", study, "--on", "slurm", "--resume")[0] == 0


def test_a_model_that_cannot_be_had_is_one_line_and_nothing_is_queued(wattdock: Command, slurm: Cluster) -> None:
    """The machine that submits fetches it, before the first task."""
    slurm.env["HF_HUB_OFFLINE"] = "1"
    lacking = wattdock.write(ONE.replace("shape:tiny-llama", "nobody/nothing"))
    code, _, err = call(wattdock, slurm, "run", lacking, "--on", "slurm")
    assert (code, "Traceback" in err) == (3, False), err
    assert "nobody/nothing" in err
    assert (slurm("squeue", "--noheader").split(), wattdock.results()) == ([], [])
