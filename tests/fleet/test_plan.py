"""What `wattdock plan --on slurm` prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from refused import raises

from wattdock.config import load_study
from wattdock.errors import PreflightError
from wattdock.fleet import process_choices

if TYPE_CHECKING:
    from conftest import Called

STUDY = """
defaults: {backend: pytorch, model: 'shape:tiny-llama', isolation: experiment}
sweep: {workload.batch_size: [1, 2, 4]}
fleet: {partition: gpu, time: "1:30:00", tasks_at_once: 2}
"""


def test_jobs_their_gpus_and_scripts_are_shown_and_nothing_is_begun(called: Called) -> None:
    """Also where there is neither Slurm nor a GPU, as on a laptop."""
    Path("x.yaml").write_text(STUDY)
    done = called("plan", "x.yaml", "--on", "slurm")
    assert done.returncode == 0, done.stderr
    for line in ("#SBATCH --partition=gpu", "#SBATCH --array=0-2%2", "#SBATCH --gres=gpu:1"):
        assert line in done.stdout.splitlines()
    *_, array, total = done.stdout.splitlines()
    assert array.startswith("gpus-1.sh: 3 tasks of 1 GPU, 6 passes, expected one after the other: ")
    assert total.startswith("1 job, expected in all: ")
    assert not Path("results").exists()
    done = called("plan", "x.yaml", "--on", "slurm", "--json")
    assert [job["tasks"] for job in json.loads(done.stdout)] == [[0, 1, 2]]


def test_what_no_machine_could_measure_is_refused_before_anything_is_queued(called: Called) -> None:
    """As on one machine; only what a node has is left to the node."""
    Path("x.yaml").write_text(STUDY.replace("tiny-llama", "tiny-lama"))
    done = called("plan", "x.yaml", "--on", "slurm")
    assert (done.returncode, done.stderr.count("did you mean tiny-llama")) == (2, 1)


def test_a_backend_without_a_lock_is_refused_before_anything_is_queued() -> None:
    """Nodes would refuse it one by one."""
    how = {"launcher": "process", "container": {"locked": True}}
    with raises(PreflightError, "no lock of packages: ", "publish.md"):
        process_choices(load_study(how | {"backend": "tensorrt"}, {}))
    assert process_choices(load_study(how | {"backend": "pytorch"}, {}))
