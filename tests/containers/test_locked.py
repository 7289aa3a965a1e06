"""`wattdock run --locked` from outside, on a real engine and a real registry: the locked image, or none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from command import SMALL, WATTDOCK
from containers.conftest import InContainers
from containers.engines import build_on, home_and_folder, image_labels, tagged
from seams.launch import LockedImage, write_lock
from unprivileged import give_to_user

from wattdock.launch.images import find_image, read_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from docker import DockerClient
    from seams.launch import Image

REVISION = "6550c3b"
RUN = ("run", *SMALL, "--locked")
ABSENT = f"sha256:{'0' * 64}"


@dataclass(frozen=True, kw_only=True)
class Locked(InContainers):
    """The command of a user whose lock holds one image that a registry has."""

    entry: LockedImage

    def words(self, *args: str | Path) -> list[str | Path]:
        return [WATTDOCK, *args]

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return super().env({"WATTDOCK_IMAGES_LOCK": str(self.home / "images.lock"), **(more or {})})

    def lock(self, **changes: Any) -> None:
        """Write the lock, with an entry that differs in these."""
        file = self.home / "images.lock"
        write_lock(file, {"fake": LockedImage.model_validate({**self.entry.model_dump(), **changes})})
        give_to_user(file)

    def refused(self, *more: str) -> str:
        """Return why a locked run is refused; nothing was started."""
        done = self(*RUN, *more)
        assert done.returncode in (2, 3), done.stderr
        assert self.containers() == []
        assert "Traceback" not in done.stderr
        return done.stderr


@pytest.fixture(scope="module")
def pushed_image(fake_image: Image, registry: str, client: DockerClient) -> Iterator[Image]:
    """The fake backend's image, saying what it was made from, as the registry has it."""
    with tagged("locked") as name:
        build_on(fake_image.name, name, {}, labels=image_labels(REVISION))
        repository = f"{registry}/wattdock-fake"
        client.images.get(name).tag(repository, "latest")
        client.images.push(repository, tag="latest")
        yield find_image(name, backend="fake")


@pytest.fixture
def locked(pushed_image: Image, registry: str, client: DockerClient, tmp_path: Path) -> Locked:
    """The command, with a lock of that image."""
    digest = next(digest for digest in pushed_image.digests if digest.startswith(registry))
    entry = LockedImage(digest=digest, base="base:1", revision=REVISION)
    command = Locked(*home_and_folder(tmp_path), image=pushed_image, client=client, entry=entry)
    command.lock()
    return command


def test_a_locked_run_says_by_what_its_image_was_pinned_and_that_only_this_machine_has_it(locked: Locked) -> None:
    """As an unprivileged user; everything that a reader needs to get the image again is in the row."""
    done = locked(*RUN)
    assert done.returncode == 0, done.stderr
    digest = locked.entry.repo_digest
    assert done.stderr.startswith(f"launcher: docker (locked image {digest})")
    [row] = locked.results()
    environment, container = row["environment"], row["environment"]["container"]
    assert (environment["image_digest"], container["locked"], container["locked_digest"]) == (digest, True, digest)
    assert container["image_id"] == locked.image.id
    assert container["revision"] == REVISION
    assert container["lock_sha256"] == read_lock(locked.home / "images.lock").sha256
    [check] = [check for check in row["audit"]["checks"] if check["name"] == "software"]
    # A checkout with changes of its own is no commit's.
    changed = "wattdock is of no commit, or has changes" if environment["wattdock_dirty"] else ""
    figure = changed or f"{digest}: only that machine has it; no registry has its base"
    assert (check["status"], check["figure"]) == ("fail", figure)


def test_a_tag_that_moved_to_other_bits_changes_nothing(locked: Locked, fake_image: Image, registry: str) -> None:
    """Neither here nor in the registry is it the tag that counts."""
    repository = f"{registry}/wattdock-fake"
    locked.client.images.get(fake_image.id).tag(repository, "latest")
    locked.client.images.push(repository, tag="latest")
    assert locked.client.images.get(f"{repository}:latest").id != locked.image.id
    assert locked(*RUN).returncode == 0
    [row] = locked.results()
    assert row["environment"]["container"]["image_id"] == locked.image.id


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"digest": f"x@{ABSENT}"}, f"image x@{ABSENT} is not there; get it with: wattdock images pull fake"),
        ({"digest": ABSENT}, "is not there; only the machine that built it has it"),
    ],
    ids=["missing digest", "missing id"],
)
def test_what_is_not_here_as_locked_is_refused_with_how_to_get_it(
    changes: dict[str, Any], words: str, locked: Locked
) -> None:
    """Nothing is pulled, nothing falls back."""
    locked.lock(**changes)
    assert words in locked.refused()


@pytest.mark.parametrize(
    ("more", "other"),
    [
        (("--set", "container.image=x"), "container.image"),
        (("--set", "runner_python=/usr/bin/python3"), "runner_python"),
    ],
)
def test_what_would_be_another_image_excludes_the_lock(more: tuple[str, ...], other: str, locked: Locked) -> None:
    """It would be silently ignored otherwise, on one side or the other."""
    refused = locked.refused(*more)
    assert all(setting in refused for setting in ("container.locked", other))


def test_the_engine_settings_that_pass_into_a_locked_container_are_said_and_stored(locked: Locked) -> None:
    """An image by digest is half of what decides how an engine runs; secrets get nowhere."""
    variables = {"NCCL_NTHREADS": "2", "CUDA_LAUNCH_BLOCKING": "1", "HF_TOKEN": "hf_not_to_be_seen"}
    done = locked(*RUN, env=variables)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "; variables that reach the runner: " in line]
    assert "NCCL_NTHREADS=2" in line
    assert "CUDA_LAUNCH_BLOCKING" not in line
    [row] = locked.results()
    stored = row["environment"]["variables"]
    assert (stored["NCCL_NTHREADS"], "CUDA_LAUNCH_BLOCKING" in stored) == ("2", False)
    [folder] = (locked.folder / "results").glob("2*")
    content = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert b"hf_not_to_be_seen" not in content + done.stderr.encode()


def test_a_study_is_not_resumed_under_another_digest_of_the_same_bits(locked: Locked, registry: str) -> None:
    """Its passes were not held against that one; nor is it under a lock that names no digest."""
    assert locked(*RUN).returncode == 0
    repository = f"{registry}/wattdock-fake-again"
    locked.client.images.get(locked.image.id).tag(repository, "latest")
    locked.client.images.push(repository, tag="latest")
    other = next(
        digest for digest in locked.client.images.get(f"{repository}:latest").attrs["RepoDigests"] if "again" in digest
    )
    locked.lock(digest=other)
    assert f"{locked.entry.repo_digest} → {other}" in locked.refused("--resume")
    locked.lock(digest=locked.image.id)
    assert f"{locked.entry.repo_digest} → None" in locked.refused("--resume")
    locked.lock()
    resumed = locked(*RUN, "--resume")
    assert resumed.returncode == 0, resumed.stderr


def test_a_bundle_of_a_locked_run_is_measured_again_under_its_own_lock(locked: Locked) -> None:
    """The lock in use here meanwhile names another image; the one in the bundle counts."""
    assert locked(*RUN).returncode == 0
    made = locked("bundle", "create", "results", "--output", "b.tar")
    assert made.returncode == 0, made.stderr
    locked.lock(digest=ABSENT)
    again = locked("reproduce", "b.tar", "--output-dir", "again", "--json")
    # One restart has no interval: undecided, which is 10.
    assert again.returncode == 10, again.stderr
    comparison = json.loads(again.stdout)
    assert comparison["differs_in"] == []
    row = json.loads((locked.folder / comparison["pairs"][0]["b"] / "result.json").read_text())
    container = row["environment"]["container"]
    assert (container["locked"], container["locked_digest"]) == (True, locked.entry.repo_digest)
    assert container["image_id"] == locked.image.id
