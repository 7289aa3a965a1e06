"""From a study to the scripts that Slurm is given."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from refused import raises
from seams.fleet import options_of

from wattdock.config import Study, load_study
from wattdock.errors import ConfigError, PreflightError
from wattdock.fleet import Job, jobs_of
from wattdock.study.tasks import tasks_of

PATH = Path("/shared/re sults/studies/20260101T000000-x-1")


def study(*experiments: dict[str, Any], fleet: dict[str, Any] | None = None) -> Study:
    defaults = {"backend": "fake", "model": "shape:tiny-llama"}
    return load_study({"defaults": defaults, "experiments": list(experiments), "fleet": fleet or {}}, {})


def jobs(of: Study) -> list[Job]:
    return jobs_of(of, tasks_of(of, PATH), path=PATH)


def test_tasks_of_equally_many_gpus_are_one_array() -> None:
    """An experiment takes as many as its own settings need, none on the CPU; a load group is one task."""
    one, two = {"name": "one"}, {"name": "two", "gpus": {"count": 2}}
    cpu, other = {"name": "cpu", "accelerator": "cpu"}, {"name": "other", "fake": {"step_s": 0.5}}
    again = {"name": "again", "workload": {"batch_size": 8}}
    found = jobs(study(one, two, cpu, other, again))
    assert [(job.file_name, job.gpus, job.tasks) for job in found] == [
        ("gpus-0.sh", 0, (2,)),
        ("gpus-1.sh", 1, (0, 3)),
        ("gpus-2.sh", 2, (1,)),
    ]
    arrays = [option for job in found for option in options_of(job) if re.match("--(array|gres)=", option)]
    assert arrays == ["--array=2", "--gres=gpu:1", "--array=0,3", "--gres=gpu:2", "--array=1"]


def test_models_over_equally_many_nodes_are_one_array() -> None:
    """A task is a job of all its nodes, with GPUs on each; agents that somebody started are no nodes of a job."""
    two, three = {"nodes": 2, "gpus": {"count": 4}}, {"nodes": 3, "gpus": {"count": 4}}
    found = jobs(study({"name": "one"}, {"name": "two", **two}, {"name": "three", **three}))
    assert [(job.file_name, job.description) for job in found] == [
        ("gpus-1.sh", "1 task of 1 GPU"),
        ("nodes-2-gpus-4.sh", "1 task of 2 nodes with 4 GPUs"),
        ("nodes-3-gpus-4.sh", "1 task of 3 nodes with 4 GPUs"),
    ]
    assert {"--nodes=3", "--ntasks-per-node=1", "--gres=gpu:4"} < set(options_of(found[2]))
    assert "--ntasks-per-node" not in found[0].script
    with raises(PreflightError, "nodes.agents", "write nodes: 2"):
        jobs(study({"gpus": {"count": 1}, "nodes": {"agents": ["n:1"], "pairing": "p"}}))


def test_more_tasks_than_an_array_has_are_refused() -> None:
    """A cluster's arrays end at 1001 unless it raises that."""
    experiments = [{"name": f"{at}", "fake": {"step_s": at / 1e4}} for at in range(1, 1002)]
    [array] = jobs(study(*experiments[:1000], fleet={"tasks_at_once": 8}))
    assert {"--array=0-999%8", f"--output='{PATH}/tasks/%4a.log'"} < set(options_of(array))
    with raises(PreflightError, 1001, 1000):
        jobs(study(*experiments))


def test_a_folder_s_name_is_no_pattern_of_slurm_s() -> None:
    """It would take %j in it for the job's name, and the log would lie elsewhere."""
    of, path = study({}), Path("/shared/50%j/studies/x")
    for job in jobs_of(of, tasks_of(of, path), path=path):
        assert "--output=/shared/50%%j/studies/x/tasks/" in job.script


@pytest.mark.parametrize("character", ["\n", "\r", "\x1b", "\u2028"])
def test_no_name_becomes_a_line_of_a_script(character: str) -> None:
    """Of a folder, in an option and so in a comment; of a study or an experiment, a setting of Slurm's, a GPU."""
    line = f"{character}touch /tmp/mine{character}"
    of = study({})
    with raises(PreflightError, "--output-dir"):
        jobs_of(of, tasks_of(of, PATH), path=Path(f"/shared/x{line}/studies/y"))
    for name in ("partition", "account", "constraint", "time"):
        with raises(ConfigError, name):
            study({}, fleet={name: f"gpu{line}"})
    named = load_study({"name": f"s{line}", "experiments": [{"name": f"e{line}", "backend": "fake"}]}, {})
    for job in jobs_of(named, tasks_of(named, PATH), path=PATH):
        assert "touch" not in job.script
    with raises(PreflightError, "gpus"):
        jobs(study({"gpus": [f"GPU-{line}"]}))


def test_a_script_is_shell_and_holds_what_the_fleet_section_says() -> None:
    """Other options come first, so that none of ours is overridden."""
    fleet = {
        "partition": "gpu",
        "account": "me",
        "time": "1-12",
        "end_before_s": 60,
        "constraint": "h100&nvlink",
        "setup": ["module load cuda", "echo '$ready'"],
        "more": ["--qos=low", "--signal=TERM"],
    }
    [job] = jobs(study({"exclusive": "machine"}, fleet=fleet))
    subprocess.run(["bash", "-n"], input=job.script, text=True, check=True)
    assert options_of(job)[:2] == fleet["more"]
    expected = ("--partition=gpu", "--account=me", "--time=1-12", "--constraint=h100&nvlink", "--exclusive")
    assert set(options_of(job)) >= {*expected, f"--job-name={PATH.name}", "--signal=B:USR1@60", "--requeue"}
    *_, module, echo, _, trap, task = job.script.splitlines()
    assert trap == "trap '' USR1"
    assert [module, echo] == fleet["setup"]
    assert task.startswith("exec ")
    assert f"fleet task '{PATH}' " in task


def test_tasks_ask_no_hub_for_what_was_fetched_before() -> None:
    """The machine that submits fetches it, unless each task is to."""
    assert jobs_of(study({}), [], path=PATH) == []
    for where, offline in (("here", True), ("none", False)):
        [array] = jobs(study({}, fleet={"prepare": where}))
        assert ("HF_HUB_OFFLINE" in array.script) == offline


@pytest.mark.parametrize(("setting", "asked"), [(None, False), (True, True)])
def test_a_node_is_shared_where_experiments_share_their_machine(setting: bool | None, asked: bool) -> None:
    """`exclusive: machine`, the default of experiments, asks for a whole node; the section may say otherwise."""
    share, alone = {"exclusive": "gpus"}, {"gpus": {"count": 2}}
    first, second = jobs(study(share, alone, fleet={"exclusive": setting}))
    assert ("--exclusive" in options_of(first), "--exclusive" in options_of(second)) == (asked, True)


def test_gpus_of_one_machine_are_refused() -> None:
    """Slurm chooses GPUs; the line says what to write."""
    with raises(PreflightError, "0,2", "2}"):
        jobs(study({"name": "a", "gpus": [0, 2]}))


@pytest.mark.parametrize(
    ("fleet", "values"),
    [
        ({"partion": "x"}, ["partion", "partition"]),
        ({"time": "an hour"}, ["fleet.time"]),
        ({"partition": "a b"}, ["fleet.partition"]),
        ({"setup": ["a\n#SBATCH --x"]}, ["fleet.setup"]),
        ({"more": ["qos=low"]}, ["fleet.more"]),
        ({"more": ["--array=0-3"]}, ["--array=0-3"]),
        ({"tasks_at_once": 0}, ["fleet.tasks_at_once"]),
    ],
)
def test_a_mistake_in_the_section_is_told_with_its_place(fleet: dict[str, Any], values: list[str]) -> None:
    """Nothing but what was meant reaches a script."""
    with raises(ConfigError, *values):
        study({}, fleet=fleet)
