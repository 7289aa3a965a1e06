"""What goes into a bundle, and what must not."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from make.machine import VirtualMachine, experiment
from make.rows import document
from make.stored import bundled, rows, stored, unpacked
from refused import raises
from seams.console import whole_view
from unprivileged import UID

from wattdock.config import Study, load_study
from wattdock.errors import Cause, ConfigError, StoreError
from wattdock.publish import create_bundle, open_bundle
from wattdock.reports import markdown, points_of

if TYPE_CHECKING:
    from pathlib import Path


def test_results_are_bundled_byte_for_byte_and_logs_only_where_asked_for(tmp_path: Path) -> None:
    """What was measured is never rewritten; a log may hold anything."""
    result = stored(tmp_path / "results")
    for name, logs in (("a", False), ("b", True)):
        bundled(result, tmp_path / f"{name}.tar", logs=logs)
        place = unpacked(tmp_path / f"{name}.tar", tmp_path) / "results" / result.name
        files = {file.relative_to(result) for file in result.rglob("*") if file.is_file()}
        wanted = {file for file in files if logs or file.suffix != ".log"}
        assert {file.relative_to(place) for file in place.rglob("*") if file.is_file()} == wanted
        assert all((place / file).read_bytes() == (result / file).read_bytes() for file in wanted)


@pytest.mark.parametrize("lost", ["restarts/1/timeline.parquet", "restarts/0/record.json", "restarts/1", "restarts"])
def test_a_result_whose_records_are_gone_is_not_bundled(tmp_path: Path, lost: str) -> None:
    """Nobody could analyse it anew, and the bundle would pass for a whole one."""
    result = stored(tmp_path / "results")
    (shutil.rmtree if (result / lost).is_dir() else os.unlink)(result / lost)
    first = {"restarts/1": "restarts/1/record.json", "restarts": "restarts/0/record.json"}.get(lost, lost)
    with raises(StoreError, f"{result / first} is missing") as caught:
        bundled(result, tmp_path / "b.tar")
    assert caught.value.exit_code == 7
    assert not list(tmp_path.glob("*b.tar*"))


def test_equal_results_give_equal_bytes(tmp_path: Path) -> None:
    """Whoever bundles them, whenever, and whatever the file is called."""
    result = stored(tmp_path / "results")
    bundled(result, tmp_path / "b.tar")
    shutil.copytree(tmp_path / "results", tmp_path / "again/results")
    bundled(tmp_path / "again/results" / result.name, tmp_path / "again/other.tar")
    assert (tmp_path / "b.tar").read_bytes() == (tmp_path / "again/other.tar").read_bytes()


@pytest.mark.parametrize(
    "text",
    [
        "token hf_abcdefghijklmnopqrstuvwxyz0123 used",
        "Authorization: Bearer abcdefghijklmnop.qrst",
        "https://alice:s3cr3t@packages.example/simple",
        "OPENAI_API_KEY=verysecretvalue",
        "key AKIAABCDEFGHIJKLMNOP",
        "-----BEGIN PRIVATE KEY-----\nMIIEvQ",
        'answered {"auth_token": "sesame-9-open"}',
        "a-token-of-no-known-shape",
        "ray://:pw@head:6379",
        "https://tok@host/simple",
        "https://host/v1?token=abcd",
        "AccountName=x;AccountKey=abcdefgh==;EndpointSuffix=core.example",
        "https://hooks.slack.com/services/T000/B000/abcdefgh",
        "https://bucket.example/w?X-Amz-Signature=0123456789abcdef",
        "key x7Kq9ZbW2mTfV4nLpR8sYcD3 taken",
    ],
)
def test_a_secret_is_refused_in_a_result_a_log_and_a_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """By its shape, its setting's name, or as the value of a secret variable; the file is named, not the secret."""
    monkeypatch.setenv("HF_TOKEN", "a-token-of-no-known-shape")
    folder = stored(tmp_path / "results")
    (folder / "runner.log").write_text(text)
    assert bundled(folder, tmp_path / "without.tar").digest
    with raises(ConfigError, "runner.log", cause=Cause.SECRET):
        bundled(folder, tmp_path / "b.tar", logs=True)
    failure = {"kind": "RunnerError", "message": text, "stage": "load", "exit_code": 5}
    with raises(ConfigError, "result.json", cause=Cause.SECRET) as caught:
        bundled(stored(tmp_path / "other", error=failure), tmp_path / "b.tar")
    assert text not in str(caught.value)
    assert not list(tmp_path.glob("*b.tar*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_what_another_users_link_leads_to_is_not_bundled(tmp_path: Path) -> None:
    """A colleague's result could publish any file that only its bundler can read."""
    result = stored(tmp_path / "results")
    (tmp_path / "diary").write_text("dear diary")
    (result / "notes.json").symlink_to(tmp_path / "diary")
    bundled(result, tmp_path / "ours.tar")
    os.chown(result / "notes.json", UID, UID, follow_symlinks=False)
    with raises(StoreError, "notes.json", UID, cause=Cause.OTHERS_COULD_WRITE):
        bundled(result, tmp_path / "theirs.tar")


@pytest.mark.parametrize("text", ["max_output_tokens: 12345678", "t512 t513", "GPU-1b2c", "tokens=100000000", "sk-8"])
def test_ordinary_text_is_no_secret(tmp_path: Path, text: str) -> None:
    """Figures must not go for keys."""
    folder = stored(tmp_path / "results")
    (folder / "runner.log").write_text(text)
    assert bundled(folder, tmp_path / "b.tar", logs=True).digest


def test_files_that_hold_our_own_names_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is replaced; whoever hands a bundle out decides."""
    for name in ("USER", "HOME", "HOSTNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOGNAME", "quentina")
    monkeypatch.setattr("platform.node", lambda: "frigg-1")
    folder = stored(tmp_path / "results")
    (folder / "runner.log").write_text("loaded /home/quentina/model")
    made = bundled(folder, tmp_path / "b.tar", logs=True)
    assert made.identifying_files == (f"results/{folder.name}/runner.log",)
    assert bundled(folder, tmp_path / "c.tar").identifying_files == ()
    monkeypatch.setenv("HOME", "/root")
    (folder / "runner.log").write_text("loaded /root/.local/share/wattdock/model")
    assert bundled(folder, tmp_path / "d.tar", logs=True).identifying_files == (f"results/{folder.name}/runner.log",)


def test_prompts_are_bundled_while_they_are_those_that_were_sent(tmp_path: Path) -> None:
    """By their hash; what is missing is said."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Write"}')
    digest = hashlib.sha256(prompts.read_bytes()).hexdigest()
    sample = document()
    environment = sample["environment"] | {"dataset": str(prompts), "dataset_sha256": digest}
    config = sample["config"]
    config["workload"]["prompts"]["source"] = str(prompts)
    folder = stored(tmp_path / "results", environment=environment, config=config)
    made = bundled(folder, tmp_path / "b.tar")
    place = unpacked(made.path, tmp_path) / f"prompts/{digest[:16]}.jsonl"
    assert place.read_bytes() == prompts.read_bytes()
    assert digest in bundled(folder, tmp_path / "c.tar", prompts=False).manifest.missing[0]
    prompts.write_text("{}")
    assert digest in bundled(folder, tmp_path / "d.tar").manifest.missing[0]
    prompts.unlink()
    assert os.strerror(errno.ENOENT) in bundled(folder, tmp_path / "e.tar").manifest.missing[0]


def test_results_of_two_studies_may_share_a_name(tmp_path: Path) -> None:
    """Experiments of the bundle's one study may not, and it is read to reproduce them."""
    config = document()["config"] | {"name": "same"}
    for count in (1, 2):
        name = f"2026010{count}T000000-pytorch-0123abcd"
        stored(tmp_path / "results", name=name, config=config | {"power_limit_w": 60.0 + count})
    made = bundled(tmp_path / "results", tmp_path / "b.tar")
    study = load_study(unpacked(made.path, tmp_path) / "study.yaml", {})
    assert [experiment.name for experiment in study.experiments] == ["same", "same (2)"]


@pytest.mark.parametrize("cached", ["{}", "hub-cache:{}+files-sha256:" + "f" * 64])
def test_models_from_a_hub_are_pinned_to_the_commits_that_ran(tmp_path: Path, cached: str) -> None:
    """The draft model, too: another one has other tokens accepted, and so other joules per token."""
    commit, of_draft = "e" * 40, "d" * 40
    sample = document()
    environment, config = sample["environment"], sample["config"]
    environment["model"] |= {"kind": "hub", "revision": cached.format(commit)}
    environment["model"] |= {"draft": f"maker/draft {cached.format(of_draft)}"}
    drafts = {"speculative_config": {"model": "maker/draft", "num_speculative_tokens": 2}}
    config |= {"backend": "vllm", "model": {"id": "maker/model"}, "vllm": drafts}
    made = bundled(stored(tmp_path / "results", config=config, environment=environment), tmp_path / "b.tar")
    [experiment] = load_study(unpacked(made.path, tmp_path) / "study.yaml", {}).experiments
    assert experiment.model.revision == commit
    assert experiment.draft
    assert experiment.draft.revision == of_draft


def test_a_lock_of_images_goes_in_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results cite its hash."""
    lock = tmp_path / "images.lock"
    lock.write_text("images: {}\n")
    folder = stored(tmp_path / "results")
    monkeypatch.setenv("WATTDOCK_IMAGES_LOCK", str(lock))
    made = bundled(folder, tmp_path / "b.tar")
    assert (unpacked(made.path, tmp_path) / "images.lock").read_bytes() == lock.read_bytes()


def test_a_file_that_cannot_be_read_is_named_in_one_line(tmp_path: Path) -> None:
    """Nothing is left of the bundle."""
    folder = stored(tmp_path / "results")
    (folder / "runner.log").unlink()
    (folder / "runner.log").symlink_to("/proc/self/mem")
    with raises(StoreError, os.strerror(errno.EIO)):
        bundled(folder, tmp_path / "c.tar", logs=True)
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.parametrize("name", ["b", ".b.tar"])
def test_a_name_that_no_bundle_can_have_is_refused(tmp_path: Path, name: str) -> None:
    """One file that ends in .tar."""
    with raises(ConfigError, name):
        bundled(stored(tmp_path / "results"), tmp_path / name)


def test_what_would_be_run_again_under_one_id_is_all_in_the_study(tmp_path: Path) -> None:
    """An id is only what a result says of itself."""
    config = document()["config"]
    other = config | {"workload": config["workload"] | {"batch_size": 77}}
    results = stored(tmp_path / "results", config=other).parent
    stored(results, name="20260101T000001-pytorch-0123abcd", config=config | {"name": "again"})
    stored(results, name="20260101T000002-pytorch-0123abcd")
    manifest = bundled(results, tmp_path / "b.tar").manifest
    experiments = yaml.safe_load((unpacked(tmp_path / "b.tar", tmp_path) / "study.yaml").read_text())["experiments"]
    assert [experiment["workload"]["batch_size"] for experiment in experiments] == [77, 2]
    assert list(manifest.results.values()) == [0, 1, 1]


def test_a_bundle_names_the_code_that_measured(tmp_path: Path) -> None:
    """Not the checkout that it was made in: who cites it cites what measured."""
    first, second = "e" * 40, "f" * 40
    environment = document()["environment"] | {"wattdock_version": "0.1.0"}
    results = stored(
        tmp_path / "results", environment=environment | {"wattdock_commit": second, "wattdock_dirty": True}
    ).parent
    stored(results, name="20260101T000001-pytorch-0123abcd", environment=environment | {"wattdock_commit": first})
    made = bundled(results, tmp_path / "b.tar")
    readme = (unpacked(made.path, tmp_path) / "README.md").read_text()
    assert ("0.1.0" in readme, f"{first} and" in readme, f"{second} with changes" in readme) == (True, True, True)
    with open_bundle(made.path) as opened:
        assert markdown(points_of(opened.results())) in readme
        assert re.search(r"files, \d+\.\d kB$", str(next(iter(whole_view(opened)))))


def asked(folder: str | Path) -> dict[str, Any]:
    """Return what is laid over a sample to ask a task of a folder."""
    return {"config.quality": {"tasks": ["mine"], "folder": str(folder)}}


def own_tasks(folder: Path) -> Path:
    """Make a folder of tasks with data, and with what no bundle needs."""
    files = {"mine.yaml": "task: mine\n", "data/mine.jsonl": "{}\n", "__pycache__/x.pyc": "x", ".git/config": "x"}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_tasks_of_ones_own_are_in_the_bundle_with_their_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And study.yaml names them there, so that nobody asks what lies in a folder of that name elsewhere."""
    monkeypatch.chdir(tmp_path)
    own_tasks(tmp_path / "tasks")
    result = stored(tmp_path / "results", **asked("tasks"))
    made = bundled(result, tmp_path / "b.tar")
    folder = unpacked(tmp_path / "b.tar", tmp_path)
    [experiment] = yaml.safe_load((folder / "study.yaml").read_text())["experiments"]
    place = folder / experiment["quality"]["folder"]
    assert place.parent.parent == folder / "tasks"
    assert {str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()} == {
        "mine.yaml",
        "data/mine.jsonl",
    }
    assert made.manifest.missing == []


def test_relative_paths_begin_where_a_study_was_begun_wherever_it_is_bundled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two projects with their own tasks and lengths under the same names, bundled from a third, after one has moved."""
    for name in ("first", "second", "third"):
        project = own_tasks(tmp_path / name / "tasks").parent
        (project / "tasks/mine.yaml").write_text(f"task: of {name}\n")
        (project / "lengths.jsonl").write_text(f'{{"input_tokens": {len(name)}, "output_tokens": 2}}\n' * 2)
        monkeypatch.chdir(project)
        quality, work = {"tasks": ["mine"], "folder": "tasks"}, {"prompts": "lengths.jsonl", "seed": len(name)}
        if name != "third":
            VirtualMachine(project).run(Study(name, (experiment(name, quality=quality, workload=work),)))
    (tmp_path / "first").rename(tmp_path / "moved")
    results = [*rows(tmp_path / "moved/results"), *rows(tmp_path / "second/results")]
    made = create_bundle(results, tmp_path / "b.tar")
    assert made.manifest.missing == []
    folder = unpacked(made.path, tmp_path)
    for each in yaml.safe_load((folder / "study.yaml").read_text())["experiments"]:
        tasks, lengths = each["quality"]["folder"], each["workload"]["prompts"]["source"]
        assert (folder / tasks / "mine.yaml").read_text() == f"task: of {each['name']}\n"
        assert json.loads((folder / lengths).read_text().splitlines()[0])["input_tokens"] == len(each["name"])


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [("gone", "cannot be read"), ("large", "has more than 100 MB"), ("results", "holds results, too")],
)
def test_tasks_that_a_bundle_cannot_hold_are_told(tmp_path: Path, spoilt: str, why: str) -> None:
    """One line in the manifest and the README; the settings keep the folder's name."""
    tasks = own_tasks(tmp_path / "tasks")
    result = stored(tmp_path / "results", **asked(tasks))
    if spoilt == "gone":
        shutil.rmtree(tasks)
    elif spoilt == "large":
        os.truncate(tasks / "mine.yaml", 100_000_001)
    else:
        (tasks / "result.json").touch()
    [line] = bundled(result, tmp_path / "b.tar").manifest.missing
    assert line.startswith(f"the folder of tasks tasks {why}")
    [left_out] = bundled(result, tmp_path / "c.tar", prompts=False).manifest.missing
    assert "was left out" in left_out


def test_a_secret_in_a_task_is_refused(tmp_path: Path) -> None:
    """As in any other file; a program is text, too."""
    tasks = own_tasks(tmp_path / "tasks")
    (tasks / "utils.py").write_text("TOKEN = 'hf_abcdefghijklmnopqrstuvwxyz0123'")
    result = stored(tmp_path / "results", **asked(tasks))
    with raises(ConfigError, "utils.py", cause=Cause.SECRET):
        bundled(result, tmp_path / "b.tar")
