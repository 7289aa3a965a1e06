"""What of a stranger's bundle is used on this machine, and what is not."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from make import models as tiny
from make.machine import VirtualMachine, experiment, study
from make.rows import document
from make.stored import bundled, stored
from refused import raises
from seams.publish import pack, sha256_of, sums_of

from wattdock.config import ExperimentConfig, ModelSpec
from wattdock.errors import ConfigError, PreflightError, StoreError
from wattdock.execution import measure
from wattdock.inputs import resolve_model
from wattdock.launch import find_runner
from wattdock.publish import LocalChoices, Reproduction, open_bundle, prepare_reproduction

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from subprocess import CompletedProcess

    from conftest import Called


def on_cpu(**config: Any) -> dict[str, Any]:
    """Return the sample's settings and environment as those of a run without a GPU."""
    sample = document()
    environment = sample["environment"] | {"gpu_count": 0, "gpu_names": [], "gpu_vram_gb": [], "gpu_uuids": []}
    return {"config": sample["config"] | config, "environment": environment}


def study_in(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """Return the one experiment of the study that a bundle of such a result holds."""
    made = bundled(stored(tmp_path / "results", **changes), tmp_path / "b.tar")
    with open_bundle(made.path) as bundle:
        [experiment] = yaml.safe_load((bundle.folder / "study.yaml").read_text())["experiments"]
    settings: dict[str, Any] = experiment
    return settings


def prepared(path: Path, local: LocalChoices, home: Path) -> Reproduction:
    with open_bundle(path) as bundle:
        return prepare_reproduction(bundle, local, home=home)


def reproduced(tmp_path: Path, local: LocalChoices, **changes: Any) -> Reproduction:
    made = bundled(stored(tmp_path / "results", **changes), tmp_path / "b.tar")
    return prepared(made.path, local, tmp_path)


def rewritten(tmp_path: Path, written: str, other: str, **changes: Any) -> Path:
    """Return a bundle whose study.yaml says something else, and whose hashes agree with it."""
    made = bundled(stored(tmp_path / "results", **changes), tmp_path / "b.tar")
    with open_bundle(made.path) as bundle:
        files = {
            str(path.relative_to(bundle.folder)): path.read_bytes()
            for path in bundle.folder.rglob("*")
            if path.is_file() and path.name != "SHA256SUMS"
        }
    text = files["study.yaml"].decode()
    assert re.search(written, text)
    files["study.yaml"] = re.sub(written, other, text).encode()
    with (tmp_path / "other.tar").open("wb") as file:
        sums = sums_of({name: sha256_of(content) for name, content in files.items()})
        pack(files | {"SHA256SUMS": sums.encode()}, file, top="other")
    return tmp_path / "other.tar"


def test_what_auto_meant_is_written_out_and_what_only_one_machine_has_is_left_out(tmp_path: Path) -> None:
    """Another machine's "auto" must not choose otherwise, and a path in a bundle not decide what is executed."""
    environment = document()["environment"]
    config = document()["config"] | {"runner_python": "/tmp/evil", "gpus": [2, 3], "launcher": "auto"}
    settings = study_in(tmp_path, config=config)
    assert "runner_python" not in settings
    assert settings["gpus"] == {"count": 2}
    assert settings["launcher"] == environment["launcher"]
    assert settings["accelerator"] == ("cuda" if environment["gpu_count"] else "cpu")


def test_an_interpreter_that_a_study_names_is_not_used(tmp_path: Path) -> None:
    """Nor where somebody wrote one into a bundle; only the one named here."""
    for number, python in enumerate((None, tmp_path / "python")):
        path = rewritten(tmp_path / str(number), "backend:", "runner_python: /tmp/evil\n  backend:", **on_cpu())
        [config] = prepared(path, LocalChoices(runner_python=python), tmp_path).study.experiments
        assert config.runner_python == python


@pytest.mark.parametrize("has_own_python", [False, True])
def test_packages_count_as_locked_unless_an_interpreter_is_named_here(tmp_path: Path, has_own_python: bool) -> None:
    """Nobody checks that interpreter's packages, and a result that says both could not be read again."""
    lock = (find_runner("pytorch") / "requirements-cpu.lock").read_bytes()
    digest = hashlib.sha256(lock).hexdigest()
    facts = {"lock": "requirements-cpu.lock", "lock_sha256": digest, "packages": 1, "interpreter": "CPython"}
    changes = on_cpu(backend="pytorch", launcher="process", container={"locked": True})
    changes["config"].pop("fake", None)
    changes["environment"] |= {"packages": facts, "launcher": "process", "container": None, "backend": "pytorch"}
    local = LocalChoices(runner_python=tmp_path / "python" if has_own_python else None)
    [config] = reproduced(tmp_path, local, **changes).study.experiments
    assert config.container.locked == (not has_own_python)
    assert ExperimentConfig.model_validate(config.model_dump(mode="json")) == config
    changes["environment"]["packages"] = facts | {"lock_sha256": "0" * 64}
    if not has_own_python:
        with raises(ConfigError, "package-locks/0000000000000000.lock", "WATTDOCK_RUNNERS"):
            reproduced(tmp_path / "other", local, **changes)


def test_a_models_own_code_runs_only_where_that_is_said_here(tmp_path: Path) -> None:
    """The author's word does not do; nor does it for a command, or for tasks and programs of the author's choice."""
    model = document()["config"]["model"] | {"trust_remote_code": True}
    with pytest.raises(ConfigError, match="--trust-remote-code"):
        reproduced(tmp_path, LocalChoices(), **on_cpu(model=model))
    command = on_cpu() | {"config": {"backend": "measure", "measure": {"command": ["rm", "-r", "/data"]}}}
    (tmp_path / "command").mkdir()
    with pytest.raises(ConfigError, match="runs a command, rm -r /data"):
        reproduced(tmp_path / "command", LocalChoices(), **command)
    for name, settings, code in (
        ("tasks", {"folder": "/there"}, "tasks in /there"),
        ("programs", {"run_code": True}, "programs that the model writes, in no container"),
    ):
        (tmp_path / name).mkdir()
        quality = on_cpu(quality={"tasks": ["code"]} | settings)
        with pytest.raises(ConfigError, match=f"runs {code}"):
            reproduced(tmp_path / name, LocalChoices(), **quality)


def test_chat_templates_are_told_the_time_that_they_were_told(tmp_path: Path) -> None:
    """Else a template that asks for the date would send other prompts."""
    changes = on_cpu()
    changes["environment"]["model"] |= {"template_time_utc": "2001-02-03T23:59:59+00:00"}
    [config] = reproduced(tmp_path, LocalChoices(), **changes).study.experiments
    assert str(config.prompts.chat_time_utc) == "2001-02-03 23:59:59+00:00"


def test_weights_from_a_folder_must_be_named_and_be_the_same(tmp_path: Path) -> None:
    """A folder of another model is refused before it is loaded, be it the model's or its draft model's."""
    files = tiny.files()
    model, draft = tiny.write(tmp_path / "weights", files), tmp_path / "draft"
    tiny.write(draft, {name: content for name, content in files.items() if name != "tokenizer.json"})
    digests = resolve_model(ModelSpec(path=model), home=tmp_path, progress=print).files
    drafted = {f"draft/{name}": digest for name, digest in digests.items() if name != "tokenizer.json"}
    written = {"speculative_config": {"model": "/home/somebody/draft", "num_speculative_tokens": 2}}
    changes = on_cpu(backend="vllm", model={"path": "/home/somebody/weights"}, vllm=written)
    changes["config"].pop("fake", None)
    changes["environment"]["model"] |= {"kind": "path", "name": "weights", "revision": "sampled-sha256:0"}
    changes["environment"]["model"] |= {"draft": "draft at sampled-sha256:1", "files": {**digests, **drafted}}
    for number, (given, refusal) in enumerate(
        (
            (LocalChoices(), "--model-folder"),
            (LocalChoices(model_folder=draft), "tokenizer.json is gone"),
            (LocalChoices(model_folder=model), "--draft-folder"),
            (LocalChoices(model_folder=model, draft_folder=model), "'draft at .*: tokenizer.json is new"),
        )
    ):
        with pytest.raises((ConfigError, PreflightError), match=refusal):
            reproduced(tmp_path / str(number), given, **changes)
    local = LocalChoices(model_folder=model, draft_folder=draft)
    [config] = reproduced(tmp_path / "r", local, **changes).study.experiments
    assert (config.model.path, config.draft and config.draft.path) == (model, draft)


@pytest.mark.parametrize("source", ["/etc/hostname", "prompts/../study.yaml", "README.md"])
def test_prompts_that_are_not_listed_in_the_bundle_cannot_be_sent(tmp_path: Path, source: str) -> None:
    """No file of this machine is taken instead, whatever its path."""
    workload = on_cpu()["config"]["workload"] | {"prompts": {"source": source}}
    with raises(PreflightError, "version three"):
        reproduced(tmp_path, LocalChoices(), **on_cpu(workload=workload))


@pytest.mark.parametrize(
    "written",
    [
        "experiments: 1",
        "experiments: []",
        "experiments: [1]",
        "- 1",
        "",
        "experiments: [{}, {batch: 2}]",
    ],
)
def test_a_study_without_the_experiments_of_the_results_is_refused(tmp_path: Path, written: str) -> None:
    """One line, whatever it holds."""
    path = rewritten(tmp_path, r"(?s).+", written, **on_cpu())
    with pytest.raises((ConfigError, StoreError), match=r"study\.yaml") as caught:
        prepared(path, LocalChoices(), tmp_path)
    assert "\n" not in str(caught.value)


def test_an_image_is_the_locked_one_where_its_lock_is_bundled_else_the_one_by_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never what a tag leads to by now."""
    digest = f"registry.example/wattdock-vllm@sha256:{'a' * 64}"
    lock = tmp_path / "images.lock"
    lock.write_text("images: {}\n")
    monkeypatch.setenv("WATTDOCK_IMAGES_LOCK", str(lock))
    inside = {"engine": "docker", "engine_version": "27", "rootless": False, "image": "wattdock-vllm:latest"}
    inside |= {"image_id": "sha256:0", "locked": True, "locked_digest": digest, "lock_sha256": sha256_of(lock)}
    for name, image, locked in (("same", None, True), ("other", digest, False)):
        environment = document()["environment"] | {"launcher": "docker", "container": inside}
        folder = stored(tmp_path / name / "results", environment=environment)
        made = bundled(folder, tmp_path / name / "b.tar")
        with open_bundle(made.path) as bundle:
            [settings] = yaml.safe_load((bundle.folder / "study.yaml").read_text())["experiments"]
        assert (settings["container"]["image"], settings["container"]["locked"]) == (image, locked)
        lock.write_text("images: {} # another\n")


@pytest.fixture
def called_on(called: Called, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CompletedProcess[str]]:
    """Call `wattdock reproduce` on a machine in virtual time."""

    def call(machine: VirtualMachine, *words: str | Path) -> CompletedProcess[str]:
        module = "wattdock.publish.reproduce"
        monkeypatch.setattr(f"{module}.GpuInventory.here", machine.inventory)
        monkeypatch.setattr("wattdock.execution.measure", functools.partial(measure, machine=machine.access()))
        return called("reproduce", *words)

    return call


def measured(machine: VirtualMachine, bundle: Path) -> Path:
    """Measure three restarts of an experiment on a machine, and return their bundle."""
    machine.run(study(experiment("a", repeats={"restarts": 3})))
    return bundled(machine.results, bundle).path


@pytest.mark.parametrize(("watts", "equivalent", "code"), [(300, True, 0), (600, False, 9)])
def test_another_gpu_is_equivalent_at_the_same_power_and_not_at_twice_the_power(
    tmp_path: Path, called_on: Callable[..., CompletedProcess[str]], watts: float, equivalent: bool, code: int
) -> None:
    """The difference with its interval, the exit code, and the power limit that another machine has."""
    bundle = measured(VirtualMachine(tmp_path / "first", {"GPU-1": lambda _: 300.0}), tmp_path / "b.tar")
    other = VirtualMachine(tmp_path / "other", {"GPU-2": lambda _: watts}, limit_w=lambda _: 500.0)
    done = called_on(other, bundle, "--json")
    assert done.returncode == code, done.stderr
    what = "not reproduced: 1 of 1 experiments not equivalent, the first: a"
    error = {"error": {"what": what, "remedy": "", "cause": None}}
    assert (done.stderr.splitlines()[-1:] == [json.dumps(error)]) is not equivalent
    comparison = json.loads(done.stdout)
    [pair] = comparison["pairs"]
    test = pair["tests"]["energy_per_output_token_j"]
    assert test["equivalent"] is equivalent
    assert test["relative"] == pytest.approx(watts / 300 - 1, abs=0.02)
    # Both were measured in one session each, which are taken to differ as declared.
    assert test["difference"] is None
    assert (test["declared"]["interval"][0] > 0.05) is not equivalent
    assert "GPU power limit, W" in {difference["name"] for difference in comparison["differs_in"]}


def test_a_bundle_without_joules_is_compared_by_speed_and_says_so(
    tmp_path: Path, called_on: Callable[..., CompletedProcess[str]]
) -> None:
    """No figure stands in for the one that was not measured; what was measured is not measured again."""
    bundle = measured(VirtualMachine(tmp_path / "first"), tmp_path / "b.tar")
    other = VirtualMachine(tmp_path / "other")
    done = called_on(other, bundle, "--margin", "4%")
    assert done.returncode == 0, done.stderr
    assert "0.04" in done.stdout
    again = called_on(other, bundle, "--resume", "--json")
    assert again.returncode == 0, again.stderr
    [pair] = json.loads(again.stdout)["pairs"]
    assert pair["tests"]["output_tokens_per_s"]["equivalent"] is True
    assert other.launches == 3


def test_a_server_that_was_running_is_not_asked_from_a_bundle(tmp_path: Path) -> None:
    """A stranger's bundle may name any address, and its server cannot be started again."""
    there = on_cpu(backend="url", url={"base_url": "http://203.0.113.9:8000"}, model="served")
    with raises(ConfigError, "it measured a server that ran at http://203.0.113.9:8000"):
        reproduced(tmp_path, LocalChoices(), **there)
