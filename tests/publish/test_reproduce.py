"""What of a stranger's bundle is used on this machine, and what is not."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from dataclasses import replace
from math import sin
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from make import models as tiny
from make.machine import VirtualMachine, experiment, study
from make.rows import document
from make.stored import bundled, sealed, stored, unpacked
from refused import raises
from seams.metering import Series
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

    from wattdock.metering import Timeline


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
    changes["environment"]["model"] |= {"kind": "path", "name": "weights", "revision": "files-sha256:0"}
    changes["environment"]["model"] |= {"draft": "draft at files-sha256:1", "files": {**digests, **drafted}}
    for number, (given, refusal) in enumerate(
        (
            (LocalChoices(), "--model-folder"),
            (LocalChoices(model_folders=(draft,)), "tokenizer.json is gone"),
            (LocalChoices(model_folders=(model,)), "--draft-folder"),
            (LocalChoices(model_folders=(model,), draft_folders=(model,)), "'draft at .*: tokenizer.json is new"),
        )
    ):
        with pytest.raises((ConfigError, PreflightError), match=refusal):
            reproduced(tmp_path / str(number), given, **changes)
    local = LocalChoices(model_folders=(draft, model), draft_folders=(model, draft))
    [config] = reproduced(tmp_path / "r", local, **changes).study.experiments
    assert (config.model.path, config.draft and config.draft.path) == (model, draft)


def test_each_model_of_a_study_is_found_among_the_folders_by_its_digests(tmp_path: Path) -> None:
    """Two models in one bundle need two folders; of neither does the order or the name decide."""
    folders = [
        tiny.write(tmp_path / name, tiny.files() | {"model.safetensors": tiny.weights(value)})
        for name, value in (("x", 1.0), ("y", 2.0))
    ]
    for number, path in enumerate(folders):
        changes = on_cpu(model={"path": f"/home/somebody/{number}"})
        found = resolve_model(ModelSpec(path=path), home=tmp_path, progress=print)
        facts = {"kind": "path", "name": str(number), "revision": found.revision, "files": dict(found.files)}
        changes["environment"]["model"] |= facts
        name = f"20260101T00000{number}-pytorch-0123abcd"
        stored(tmp_path / "results", name=name, experiment_id=f"{number}" * 32, **changes)
    made = bundled(tmp_path / "results", tmp_path / "b.tar")
    ready = prepared(made.path, LocalChoices(model_folders=(folders[1], folders[0])), tmp_path)
    assert [config.model.path for config in ready.study.experiments] == folders
    with raises(PreflightError, folders[1], "'0'", "model.safetensors has changed"):
        prepared(made.path, LocalChoices(model_folders=(folders[1],)), tmp_path)


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


@pytest.mark.parametrize(
    ("written", "other"),
    [
        ("batch_size: .*", "batch_size: 64"),
        ("input_tokens: .*", "input_tokens: 9"),
        ("power_limit_w: .*", "power_limit_w: 200.0"),
    ],
)
def test_a_study_with_other_settings_than_its_results_is_refused(tmp_path: Path, written: str, other: str) -> None:
    """Else a figure of one kind of work would be held against a measurement of another."""
    path = rewritten(tmp_path, written, other, **on_cpu(power_limit_w=300.0))
    with raises(StoreError, "study.yaml has other settings than the result of"):
        prepared(path, LocalChoices(), tmp_path)


@pytest.mark.parametrize("is_changed", [False, True])
def test_prompts_are_sent_again_only_where_they_are_those_that_were_sent(tmp_path: Path, is_changed: bool) -> None:
    """Longer prompts under the old name would make the first figure look too small."""
    prompts, changes = tmp_path / "prompts.jsonl", on_cpu()
    prompts.write_text('{"prompt": "Write"}')
    changes["config"]["workload"]["prompts"]["source"] = str(prompts)
    changes["environment"] |= {"dataset": str(prompts), "dataset_sha256": sha256_of(prompts)}
    folder = unpacked(bundled(stored(tmp_path / "results", **changes), tmp_path / "b.tar").path, tmp_path)
    [packed] = (folder / "prompts").iterdir()
    packed.write_text('{"prompt": "Write at length"}' if is_changed else prompts.read_text())
    sealed(folder)
    if is_changed:
        with raises(PreflightError, "which are not in the bundle"):
            prepared(folder, LocalChoices(), tmp_path)
    else:
        [config] = prepared(folder, LocalChoices(), tmp_path).study.experiments
        assert config.prompts.file
        assert config.prompts.file.read_bytes() == prompts.read_bytes()


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


def test_a_bundles_figures_are_those_of_its_records_whatever_its_results_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides are analysed by one version, and nobody compares with a figure that somebody wrote by hand."""
    machine = VirtualMachine(tmp_path / "first", {"GPU-1": lambda _: 300.0})
    folder = unpacked(measured(machine, tmp_path / "b.tar"), tmp_path)
    [file] = folder.glob("results/*/result.json")
    true_j = json.loads(file.read_text())["budget"]["energy_per_unit_j"]
    forged = json.loads(file.read_text())
    forged["budget"]["energy_per_unit_j"] = true_j / 2
    file.write_text(json.dumps(forged))
    monkeypatch.setattr("wattdock.publish.reproduce.GpuInventory.here", machine.inventory)
    [compared] = prepared(sealed(folder), LocalChoices(), tmp_path).bundled
    assert compared.result.budget
    assert compared.result.budget.energy_per_unit_j == pytest.approx(true_j)
    for table in file.parent.glob("restarts/*/*.json"):
        table.unlink()
    with pytest.raises(StoreError, match="restarts"):
        prepared(sealed(folder), LocalChoices(), tmp_path)


@pytest.mark.parametrize(("watts", "equivalent", "code"), [(300, True, 0), (600, False, 9)])
def test_another_gpu_is_equivalent_at_the_same_power_and_not_at_twice_the_power(
    tmp_path: Path, called_on: Callable[..., CompletedProcess[str]], watts: float, equivalent: bool, code: int
) -> None:
    """The difference with its interval, the exit code, and the power limit that another machine has."""
    bundle = measured(VirtualMachine(tmp_path / "first", {"GPU-1": lambda _: 300.0}), tmp_path / "b.tar")
    other = VirtualMachine(tmp_path / "other", {"GPU-2": lambda _: watts}, limit_w=lambda _: 500.0)
    done = called_on(other, bundle, "--json")
    assert done.returncode == code, done.stderr
    what = "not reproduced: 1 of 1 experiments, the first: a"
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
    assert re.search(r"\na: equivalent within ± 4 %, the ratio of output tokens/s, 90 % \[-\d\.\d\d%, \+", done.stdout)
    again = called_on(other, bundle, "--resume", "--json")
    assert again.returncode == 0, again.stderr
    [pair] = json.loads(again.stdout)["pairs"]
    assert pair["tests"]["output_tokens_per_s"]["equivalent"] is True
    assert other.launches == 3


def test_a_reproduction_that_measured_nothing_says_why_and_compares_nothing(
    tmp_path: Path, called: Called, called_on: Callable[..., CompletedProcess[str]]
) -> None:
    """No list of conditions that are unknown since nothing ran; `compare` says of which side, and why."""
    bundle = measured(VirtualMachine(tmp_path / "first", {"GPU-1": lambda _: 300.0}), tmp_path / "b.tar")
    broken = VirtualMachine(tmp_path / "other", {"GPU-2": lambda _: 300.0}, load_fault="die")
    done, why = called_on(broken, bundle), "load: the runner died during loading: exited with code 70"
    assert (done.stdout, done.stderr.splitlines()[-1]) == ("", f"wattdock: {why}")
    broken.run(study(experiment("a", repeats={"restarts": 3})))
    shown = called("compare", bundle, broken.results)
    assert shown.stdout == f"a: no pass was measured in B: {why}\n"


def used_by_others(timeline: Timeline) -> Timeline:
    """Return a timeline in which the GPUs are half busy all the time."""
    gpus = {}
    for uuid, gpu in timeline.gpus.items():
        at_ns = gpu.series["temperature_c"].at_ns
        gpus[uuid] = replace(
            gpu, series={**gpu.series, "gpu_utilization_percent": Series(at_ns, np.full(len(at_ns), 50.0))}
        )
    return replace(timeline, gpus=gpus)


# Restarts, a minute apart, differ by some per cent.
UNSTEADY: dict[str, Any] = {"power": {"GPU-2": lambda at_s: 300.0 + 20.0 * sin(at_s / 20)}}
FEW = "the bundle has 1 restart, an interval takes 3 on each side: ask its authors for one with repeats.restarts: 3"
DISTURBED = "others used this machine meanwhile: end what top or `wattdock gpus` shows, then start a new reproduction"


@pytest.mark.parametrize(
    ("restarts", "there", "advice"),
    [
        (1, {}, FEW),
        (3, {"as_read": used_by_others, **UNSTEADY}, DISTURBED),
        (3, UNSTEADY, "remove what makes this machine unsteady (`wattdock doctor`), then start a new reproduction"),
    ],
    ids=["few", "disturbed", "unsteady"],
)
def test_what_is_undecided_says_what_to_change(
    tmp_path: Path,
    called_on: Callable[..., CompletedProcess[str]],
    restarts: int,
    there: dict[str, Any],
    advice: str,
) -> None:
    """In the last line, for the one cause that there is."""
    first = VirtualMachine(tmp_path / "first", {"GPU-1": lambda _: 300.0})
    first.run(study(experiment("a", repeats={"restarts": restarts})))
    bundle = bundled(first.results, tmp_path / "b.tar").path
    other = VirtualMachine(tmp_path / "other", **{"power": {"GPU-2": lambda _: 300.0}, **there})
    done = called_on(other, bundle)
    assert done.returncode == 10, done.stdout
    assert advice in done.stderr.splitlines()[-1]
    few = "a: 1 restart, so that a reproduction stays undecided (3 is the least)"
    assert (few in done.stderr) is (restarts == 1)
    assert ("a: undecided within ± 5 %, the ratio of J/output token, 90 % [" in done.stdout) is (restarts > 1)


def test_a_server_that_was_running_is_not_asked_from_a_bundle(tmp_path: Path) -> None:
    """A stranger's bundle may name any address, and its server cannot be started again."""
    there = on_cpu(backend="url", url={"base_url": "http://203.0.113.9:8000"}, model="served")
    with raises(ConfigError, "it measured a server that ran at http://203.0.113.9:8000"):
        reproduced(tmp_path, LocalChoices(), **there)


@pytest.mark.parametrize("is_packed", [True, False])
def test_the_tasks_of_a_bundle_are_asked_and_none_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_packed: bool
) -> None:
    """They run code, so they need permission; a folder of the same name in the current one is not used."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/mine.yaml").write_text("task: mine")
    monkeypatch.chdir(tmp_path)
    changes = on_cpu(quality={"tasks": ["mine"], "folder": "tasks"})
    made = bundled(stored(tmp_path / "results", **changes), tmp_path / "b.tar", prompts=is_packed)
    (tmp_path / "tasks/mine.yaml").write_text("task: other")
    with raises(ConfigError, "runs tasks in", "--trust-remote-code"):
        prepared(made.path, LocalChoices(), tmp_path / "home")
    local = LocalChoices(trust_remote_code=True)
    if not is_packed:
        with raises(PreflightError, "needs the tasks of tasks, which are not in the bundle"):
            prepared(made.path, local, tmp_path / "home")
        return
    places = set()
    for _ in range(2):
        ready = prepared(made.path, local, tmp_path / "home")
        [config] = ready.study.experiments
        assert config.quality
        places.add(config.quality.folder)
        assert ready.bundled[0].result.config == config
    [place] = places
    assert place
    [cache] = (tmp_path / "home").iterdir()
    assert place.is_relative_to(cache)
    assert cache.stat().st_mode & 0o077 == 0
    assert (place / "mine.yaml").read_text() == "task: mine"
