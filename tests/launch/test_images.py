"""The lock of images, what a build is told, and what an engine's and a registry's answers mean; no engine is asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import yaml

from wattdock.checks.preflight import _Host
from wattdock.errors import ConfigError, PreflightError
from wattdock.host import GpuInventory
from wattdock.launch.images import LOCK_VARIABLE, ImagesLock, build_image, read_lock
from wattdock.launch.images.build import (
    Base,
    base_reference,
    build_environment,
    build_words,
    image_names,
    own_digest,
)
from wattdock.launch.images.lock import DEFAULT_LOCK, LockedImage, write_lock
from wattdock.launch.images.locked import choose_digest
from wattdock.launch.images.registry import is_gone
from wattdock.launch.runners import REPO

if TYPE_CHECKING:
    from pathlib import Path

DIGEST, OTHER = f"sha256:{'b' * 64}", f"sha256:{'c' * 64}"
RESOLVED = {
    "digest": f"127.0.0.1:5000/team/wattdock-x@sha256:{'1' * 64}",
    "base": "base:1",
    "base_digest": DIGEST,
    "revision": "6550c3b",
}
REFERENCE = f"registry.example/team/wattdock-vllm@{DIGEST}"


def written(folder: Path, **changes: object) -> Path:
    """Write a lock whose one entry was changed by hand afterwards."""
    file = folder / "images.lock"
    write_lock(file, {"x": LockedImage.model_validate(RESOLVED)})
    content = yaml.safe_load(file.read_text())
    content["images"]["x"].update(changes)
    file.write_text(yaml.safe_dump(content))
    return file


def test_all_experiments_of_a_run_start_what_one_lock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is written while the first of them is checked does not count."""
    monkeypatch.setenv(LOCK_VARIABLE, str(written(tmp_path)))
    host = _Host(inventory=GpuInventory(()), holders={})
    before = read_lock()
    assert host.lock.images == {"x": LockedImage.model_validate(RESOLVED)}
    written(tmp_path, revision="abc")
    assert (host.lock.images["x"].revision, host.lock.sha256) == ("6550c3b", before.sha256)
    assert read_lock().sha256 != before.sha256


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"digest": "wattdock-x:latest"}, "images.x.digest: String should match pattern"),
        ({"base_digest": "sha256:12"}, "images.x.base_digest: String should match pattern"),
        ({"base": None}, "images.x.base: Input should be a valid string"),
        ({"image_id": "x"}, "images.x.image_id: Extra inputs are not permitted"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_an_entry_that_no_command_writes_is_refused_with_what_is_wrong(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    """In one line that names the file, the entry, and what to do."""
    file = written(tmp_path, **changes)
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        read_lock(file)
    assert str(refused.value).startswith(f"{file}: images.x")
    assert str(refused.value).endswith("; write it anew with: wattdock images lock")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["images: [", "\udcff", "- a"])
def test_a_file_that_is_no_lock_is_a_mistake_in_one_line(text: str, tmp_path: Path) -> None:
    """Not a traceback."""
    file = tmp_path / "images.lock"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"images\.lock.*wattdock images lock") as refused:
        read_lock(file)
    assert "\n" not in str(refused.value)


def test_the_lock_that_is_shipped_names_every_image(tmp_path: Path) -> None:
    """What is not pinned says so; a missing lock is a mistake only for who needs one."""
    with pytest.raises(ConfigError, match="is not there; write it with: wattdock images lock"):
        read_lock(tmp_path / "absent")
    assert read_lock(tmp_path / "absent", may_be_absent=True).images == {}
    shipped = read_lock(DEFAULT_LOCK).images
    assert tuple(shipped) == image_names() == ("coordinator", "pytorch", "tensorrt", "vllm")
    assert all(entry.repo_digest or entry.open_points["digest"] for entry in shipped.values())


@pytest.mark.parametrize(
    ("changes", "open_points"),
    [
        ({}, set()),
        ({"digest": None}, {"digest"}),
        ({"digest": DIGEST}, {"digest"}),
        ({"base_digest": None}, {"base_digest"}),
        ({"revision": None}, {"revision"}),
        ({"revision": "6550c3b-dirty"}, {"revision"}),
    ],
)
def test_what_an_entry_leaves_open_is_named(changes: dict[str, str | None], open_points: set[str]) -> None:
    """Not built, never pushed, a base in no registry, files that no commit has."""
    assert LockedImage.model_validate({**RESOLVED, **changes}).open_points.keys() == open_points


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("nvcr.io/nvidia/pytorch:26.09-py3", f"nvcr.io/nvidia/pytorch@{DIGEST}"),
        ("nvcr.io/nvidia/pytorch:26.10-py3", "nvcr.io/nvidia/pytorch:26.10-py3"),
        ("localhost:5000/mine", "localhost:5000/mine"),
    ],
)
def test_a_base_is_the_locked_one_where_the_lock_is_about_it(base: str, expected: str, tmp_path: Path) -> None:
    """A tag moves; another base was asked for on purpose."""
    entry = LockedImage(base="nvcr.io/nvidia/pytorch:26.09-py3", base_digest=DIGEST)
    assert base_reference("pytorch", base, ImagesLock(tmp_path, {"pytorch": entry}, "")) == expected


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("docker.io/library/python:3.12", DIGEST),
        ("python:3.12", DIGEST),
        ("localhost:5000/mine:1", OTHER),
        ("wattdock-test-base", None),
    ],
)
def test_a_base_has_the_digest_of_the_registry_in_its_name(base: str, expected: str | None) -> None:
    """Not that of wherever else it was pushed to; engines shorten names."""
    digests = (f"localhost:5000/mine@{OTHER}", f"python@{DIGEST}", f"localhost:5001/mine@sha256:{'d' * 64}")
    assert own_digest(base, digests) == expected


def test_a_build_takes_its_base_by_digest_and_writes_down_what_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """A base that was made here has no digest, and must not inherit the label of its own base."""
    monkeypatch.setenv("WATTDOCK_REVISION", "v1")
    words = build_words("pytorch", "cpu", Base("python:3.12", DIGEST))
    assert words[:2] == ["build", "--file"]
    for expected in (f"BASE=python:3.12@{DIGEST}", "VARIANT=cpu", "REVISION=v1"):
        assert words[words.index(expected) - 1] == "--build-arg"
    assert f"org.opencontainers.image.base.digest={DIGEST}" in words
    assert Base(f"python@{DIGEST}", DIGEST).reference == f"python@{DIGEST}"
    own = build_words("pytorch", "cpu", Base("mine", None))
    assert {"BASE=mine", "org.opencontainers.image.base.digest=", "wattdock-pytorch"} <= {*own}
    # The engine with the base builds on it: another builder has other images under the same names.
    found = build_environment({"BUILDX_BUILDER": "x", "DOCKER_CONTEXT": "x", "PATH": "/bin"}, "unix:///engine.sock")
    assert (found["BUILDX_BUILDER"], found["DOCKER_HOST"]) == ("default", "unix:///engine.sock")
    assert (found["PATH"], "DOCKER_CONTEXT" in found) == ("/bin", False)


@pytest.mark.parametrize("option", ["--build-arg=BASE=other", "-t x", "--label a=b", "-fx"])
def test_options_that_would_make_it_another_image_are_refused(option: str, tmp_path: Path) -> None:
    """Before any engine is asked."""
    with pytest.raises(ConfigError, match="is not for --build-options: the image would not be what it says it is"):
        build_image("pytorch", ImagesLock(tmp_path, {}, ""), variant="cpu", options=f"-q {option}")


def test_docker_hub_is_found_by_the_name_that_engines_leave_out() -> None:
    """`--registry docker.io/team`, as it was pushed to; the engine says "team/…"."""
    digests = (f"team/wattdock-x@{DIGEST}", f"localhost:5000/wattdock-x@{OTHER}")
    assert choose_digest(digests, "docker.io/team") == digests[0]
    assert choose_digest((), None) is None
    with pytest.raises(PreflightError, match=r"several registries have it .* choose one with --registry"):
        choose_digest(digests, None)
    with pytest.raises(PreflightError, match=r"no digest of it begins with ghcr\.io"):
        choose_digest(digests, "ghcr.io")


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        ("manifest unknown: manifest unknown", True),
        ("name unknown: The repository does not exist", True),
        (f"failed to resolve reference: {REFERENCE}: not found", True),
        (f"Head https://registry.example/v2/team/wattdock-vllm/manifests/{'a' * 64}: not found", False),
        ("unexpected status: not found", False),
        ("404 page not found", False),
    ],
)
def test_only_a_word_about_the_image_itself_says_that_it_is_gone(said: str, gone: bool) -> None:
    """A proxy's or a wrong address's 404 would make a lock look broken."""
    assert is_gone(f"the registry of {REFERENCE} does not tell its digest: {said}", REFERENCE) is gone


def test_a_build_cannot_reach_the_lock_nor_any_environment() -> None:
    """The lock would change with every image that it locks; an environment is gigabytes."""
    from docker.utils.build import PatternMatcher

    ignored = PatternMatcher((REPO / ".dockerignore").read_text().splitlines())
    assert not ignored.matches("docker/install_missing.py")
    assert not ignored.matches("build/wheels/pytorch/a-1-py3-none-any.whl")
    assert ignored.matches("docker/images.lock")
    assert ignored.matches("runners/pytorch/.venv")
