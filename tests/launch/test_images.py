"""The lock of images, and what Docker's client is asked to build; no engine is asked."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
import yaml
from refused import raises
from seams.launch import (
    BASE_NAME_LABEL,
    REPO,
    Engine,
    Image,
    LockedImage,
    build_image,
    build_labels,
    lock,
    lock_images,
    run_docker,
    write_lock,
)
from seams.planning import _Host

from wattdock.errors import Cause, ConfigError, PreflightError, StoreError
from wattdock.host import GpuInventory
from wattdock.launch.images import read_lock

if TYPE_CHECKING:
    from pathlib import Path

DIGEST, OTHER = f"sha256:{'b' * 64}", f"sha256:{'c' * 64}"
ENTRY = {
    "digest": f"registry.example.org/team/wattdock-x@sha256:{'1' * 64}",
    "base": "base:1",
    "base_digest": DIGEST,
    "revision": "6550c3b",
}
# Prints its environment, and ends with the code that is its last argument.
STANDIN = (
    f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps(dict(os.environ)))\nsys.exit(int(sys.argv[-1]))\n"
)


def written(folder: Path, **changes: object) -> Path:
    """Write a lock whose one entry was changed by hand afterwards."""
    file = folder / "images.lock"
    write_lock(file, {"x": LockedImage.model_validate(ENTRY)})
    content = yaml.safe_load(file.read_text())
    content["images"]["x"].update(changes)
    file.write_text(yaml.safe_dump(content))
    return file


def test_all_experiments_of_a_run_start_what_one_lock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is written while the first of them is checked does not count."""
    monkeypatch.setenv("WATTDOCK_IMAGES_LOCK", str(written(tmp_path)))
    host = _Host(inventory=GpuInventory(()), holders={})
    before = read_lock()
    assert host.lock.images == {"x": LockedImage.model_validate(ENTRY)}
    written(tmp_path, revision="abc")
    assert (host.lock.images["x"].revision, host.lock.sha256) == ("6550c3b", before.sha256)
    assert read_lock().sha256 != before.sha256


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"digest": "wattdock-x:latest"}, "images.x.digest: String should match pattern"),
        ({"digest": None}, "images.x.digest: Input should be a valid string"),
        ({"base_digest": "sha256:12"}, "images.x.base_digest: String should match pattern"),
        ({"image_id": "x"}, "images.x.image_id: Extra inputs are not permitted"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_an_entry_that_no_command_writes_is_refused_with_what_is_wrong(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    """In one line that names the file, the entry, and what to do."""
    file = written(tmp_path, **changes)
    with raises(ConfigError, file, words, cause=Cause.MALFORMED):
        read_lock(file)


@pytest.mark.parametrize("text", ["images: [", "\udcff", "- a"])
def test_a_file_that_is_no_lock_is_a_mistake_in_one_line(text: str, tmp_path: Path) -> None:
    """Not a traceback."""
    file = tmp_path / "images.lock"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with raises(ConfigError, "images.lock"):
        read_lock(file)


def test_the_shipped_lock_is_read_and_an_absent_one_locks_nothing(tmp_path: Path) -> None:
    """Until somebody locks an image, none is."""
    read_lock(REPO / "docker/images.lock")
    assert read_lock(tmp_path / "absent").images == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"digest": DIGEST}, ["no registry has the image"]),
        ({"digest": f"127.0.0.1:5000/vllm@{DIGEST}"}, ["its registry is on this machine only"]),
        ({"digest": f"localhost/vllm@{DIGEST}"}, ["its registry is on this machine only"]),
        ({"base_digest": None}, ["no registry has its base"]),
        ({"revision": None}, ["its sources are no commit's"]),
        ({"revision": "6550c3b-dirty", "base_digest": None}, ["no registry has its base", "its sources are no"]),
    ],
)
def test_an_entry_that_nobody_else_could_use_is_warned_of(changes: dict[str, str | None], words: list[str]) -> None:
    """Never pushed, pushed to no other machine, a base in no registry, files that no commit has."""
    warnings = LockedImage.model_validate({**ENTRY, **changes}).warnings
    assert len(warnings) == len(words)
    assert all(warning.startswith(word) for warning, word in zip(warnings, words, strict=True))


def test_a_build_takes_its_base_by_digest_and_labels_the_image_with_it() -> None:
    """A base that was built here has no digest, and the image must not inherit the label of the base's own base."""
    engine = Engine("unix:///x", "28.0")
    words = build_labels("python:3.12", Image(engine, "python:3.12", "sha256:1", f"python@{DIGEST}"))
    assert words[words.index(f"BASE=python@{DIGEST}") - 1] == "--build-arg"
    assert words[words.index(f"org.opencontainers.image.base.digest={DIGEST}") - 1] == "--label"
    assert f"{BASE_NAME_LABEL}=python:3.12" in words
    words = build_labels("mine", Image(engine, "mine", "sha256:1", None))
    assert {"BASE=mine", "org.opencontainers.image.base.digest="} <= {*words}


def test_options_of_a_build_that_no_shell_would_take_are_refused_before_anything_is_pulled() -> None:
    """A quotation mark too few is a mistake of who wrote them, not a bug of wattdock's."""
    with raises(ConfigError, "--build-options", "--label", cause=Cause.MALFORMED):
        build_image("pytorch", variant="cpu", options="--label 'x")


@pytest.mark.parametrize("option", ["--build-arg HF_TOKEN=word-of-hub", "--build-arg INDEX=https://tok@index.example/"])
def test_a_secret_among_a_builds_options_is_refused_and_not_repeated(option: str) -> None:
    """All users of the machine could read the command line, and of the image its history."""
    with raises(ConfigError, "--secret", "id=NAME,src=FILE", cause=Cause.SECRET) as caught:
        build_image("pytorch", variant="cpu", options=option)
    assert "word-of-hub" not in str(caught.value)


def test_dockers_client_works_on_the_engine_that_runners_are_started_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another context or builder has other images under the same names; a failure is one line."""
    (tmp_path / "docker").write_text(STANDIN)
    (tmp_path / "docker").chmod(0o755)
    for name, value in {"PATH": str(tmp_path), "BUILDX_BUILDER": "x", "DOCKER_CONTEXT": "x"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DOCKER_HOST", "unix:///engine.sock")
    run_docker(["0"], "")
    environment = json.loads(capfd.readouterr().out)
    names = ("DOCKER_HOST", "DOCKER_CONTEXT", "BUILDX_BUILDER", "DOCKER_BUILDKIT")
    assert [environment[name] for name in names] == ["unix:///engine.sock", "default", "default", "1"]
    with raises(PreflightError, "code 7"):
        run_docker(["7"], "cannot build x")
    (tmp_path / "docker").unlink()
    with raises(PreflightError, cause=Cause.MISSING):
        run_docker(["0"], "cannot pull x")


def test_of_several_registries_the_one_to_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock holds one digest; where its folder is missing, one line says so."""
    digests = (f"team/wattdock-x@{DIGEST}", f"localhost:5000/wattdock-x@{OTHER}")
    image = Image(Engine("unix:///x", "28.0"), "x", OTHER, digests[0], digests, {BASE_NAME_LABEL: "base:1"})
    monkeypatch.setattr(lock, "find_image", lambda *_, **__: image)
    empty = read_lock(tmp_path / "images.lock")
    assert lock_images(["x"], empty, registry="team")["x"].digest == digests[0]
    for registry, count in ((None, 2), ("ghcr.io", 0)):
        with raises(PreflightError, f"{count} digests", "--registry"):
            lock_images(["x"], empty, registry=registry)
    with raises(StoreError, "no/images.lock", cause=Cause.MISSING):
        lock_images(["x"], read_lock(tmp_path / "no/images.lock"), registry="team")


def test_a_build_cannot_reach_the_lock_nor_any_environment() -> None:
    """The lock would change with every image that it locks; an environment is gigabytes."""
    from docker.utils.build import PatternMatcher

    ignored = PatternMatcher((REPO / ".dockerignore").read_text().splitlines())
    assert not ignored.matches("docker/install_missing.py")
    assert not ignored.matches("build/wheels/pytorch/a-1-py3-none-any.whl")
    assert ignored.matches("docker/images.lock")
    assert ignored.matches("runners/pytorch/.venv")
