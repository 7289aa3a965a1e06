"""`quality:` from outside: a real engine, SmolLM2's real weights and real sandboxes, on a simulated GPU of 300 W."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fake_nvml
import gguf
import numpy as np
import pytest
from command import Command, on_gpus
from contract.runner_process import LLAMACPP_FOLDER, LLAMACPP_PYTHON
from fake_nvml import FakeGpu, constant
from unprivileged import give_to_user, user_home

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import CompletedProcess

pytestmark = pytest.mark.skipif(not LLAMACPP_PYTHON.exists(), reason=f"no llama.cpp environment at {LLAMACPP_PYTHON}")
GPU = fake_nvml.uuid_of(1)
# What llama.cpp would see on the simulated GPU, which computes nothing: the CPUs do.
SEEN = f"""
def visible_gpus():
    return ["{GPU}"]
"""
# The first of the model's blocks whose second half is silent in the worse model.
SILENT_FROM = 15
STUDY = """
name: s
defaults:
  backend: llamacpp
  model: ./sound
  warmup: {passes: 0}
  idle: {duration_s: 0}
  repeats: {restarts: 3, passes: 1}
  workload: {batch_size: 6, max_output_tokens: 4, prompts: {source: synthetic, input_tokens: 8}}
  quality: {tasks: [retrieval], limit: 6, run_code: true, max_output_tokens: 32}
  # Threads that wait for each other busily would crawl beside other tests.
  llamacpp: {n_threads: 1, n_threads_batch: 1}
experiments:
  - {name: sound, quality: {tasks: [retrieval, code]}}
  - {name: narrow, workload: {batch_size: 3}}
  - {name: worse, model: ./worse}
"""


@dataclass(frozen=True)
class Study:
    """A study that was run once for all tests of this file."""

    wattdock: Command
    env: dict[str, str]
    done: CompletedProcess[str]

    def result(self, name: str) -> dict[str, Any]:
        """Return the result of an experiment by its name."""
        [found] = [each for each in self.wattdock.results() if each["config"]["name"] == name]
        return found

    def says(self, *words: str) -> str:
        """Return what a command prints."""
        done = self.wattdock(*words, env=self.env)
        assert done.returncode == 0, done.stderr
        return done.stdout


def write_models(folder: Path, models: Path) -> None:
    """Write the embedded model, and a worse one in which half of the feed-forward layers say nothing."""
    for name in ("sound", "worse"):
        shutil.copytree(models / "smollm2-135m-instruct", folder / name, ignore=lambda *_: ["model.safetensors"])
    [file] = (folder / "worse").glob("*.gguf")
    for tensor in gguf.GGUFReader(file, "r+").tensors:
        if tensor.name.endswith("ffn_down.weight") and int(tensor.name.split(".")[1]) >= SILENT_FROM:
            tensor.data[:] = np.zeros_like(tensor.data)
    for path in folder.rglob("*"):
        give_to_user(path)


@pytest.fixture(scope="module")
def study(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Three restarts of the model, of it in smaller batches, and of a worse one."""
    home = user_home(tmp_path_factory.mktemp("quality"))
    folder, runners = home / "work", home / "runners"
    shutil.copytree(LLAMACPP_FOLDER, runners / "llamacpp", ignore=shutil.ignore_patterns(".venv", "__pycache__"))
    (runners / "llamacpp/wattdock_llamacpp_gpus.py").write_text(SEEN)
    folder.mkdir()
    give_to_user(folder)
    write_models(folder, models)
    wattdock = Command(home, folder, LLAMACPP_PYTHON)
    env = on_gpus(wattdock, FakeGpu(uuid=GPU, profile=(constant(300),))) | {"WATTDOCK_RUNNERS": str(runners)}
    done = wattdock("run", wattdock.write(STUDY), env=env, timeout=1200)
    assert done.returncode == 0, done.stderr
    return Study(wattdock, env, done)


def test_right_answers_cost_what_the_gpu_drew_while_all_were_given(study: Study) -> None:
    """300 W over the time of the questions, by three restarts; scores by task; programs were run."""
    result = study.result("sound")
    quality, overall = result["quality"], result["quality"]["overall"]
    results = study.wattdock.folder.glob("results/*/result.json")
    [folder] = [file.parent for file in results if json.loads(file.read_text())["config"]["name"] == "sound"]
    records = [json.loads(file.read_text()) for file in sorted(folder.glob("restarts/*/record.json"))]
    spans = [run_pass["span"] for record in records for each in record["evaluations"] for run_pass in each["passes"]]
    seconds = sum(span["end_ns"] - span["start_ns"] for span in spans) / 1e9
    correct = 3 * sum(sum(task["scores"]) for task in quality["tasks"])
    assert len(spans) == 6
    assert (result["status"], quality["failures"], overall["items"]) == ("ok", [], 12)
    assert overall["score"] == pytest.approx(correct / 36)
    assert overall["energy_j"] == pytest.approx(300 * seconds, rel=0.02)
    assert overall["energy_per_correct_j"] == pytest.approx(overall["energy_j"] / correct)
    low, high = overall["interval"]
    assert 0 < low < overall["energy_per_correct_j"] < high
    assert [task["name"] for task in quality["tasks"]] == ["retrieval", "code"]
    assert quality["tasks"][0]["score"] >= 0.5
    shown = study.says("show", str(folder.relative_to(study.wattdock.folder)))
    assert f"{overall['score']:.3f}" in shown


def test_worse_model_is_found_and_other_batches_of_the_same_are_not(study: Study) -> None:
    """Item by item; llama.cpp rounds otherwise in other batches, so that a text may differ and its score stays."""
    worse, narrow = (
        study.says("compare", "s:sound", f"s:{name}", "--score-margin", "2%") for name in ("worse", "narrow")
    )
    assert "over 6 items: fell by more than 0.02; 0% of answers are the same" in worse
    of_restarts = {span["restart"] for span in study.result("worse")["spans"] if span["name"] == "questions"}
    assert of_restarts == {0, 1, 2}
    assert "over 6 items: fell" not in narrow
    assert "these items rule out one by 0." in narrow
    assert "% of answers are the same" in narrow
