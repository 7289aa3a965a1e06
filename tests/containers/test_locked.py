"""`wattdock run --locked` from outside, on a real engine and a real registry: the locked image, or none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from command import SMALL, WATTDOCK
from containers.conftest import InContainers
from containers.engines import build_on, tagged
from unprivileged import give_to_user, user_home

from wattdock.launch.engine import find_containers
from wattdock.launch.images.inputs import inputs_sha256
from wattdock.launch.images.labels import Recipe, labels_from
from wattdock.launch.images.lock import LockedImage, lock_sha256, write_lock
from wattdock.launch.images.locking import from_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from docker import DockerClient

    from wattdock.launch.engine import Containers

INPUTS = {"FROM": f"sha256:{'b' * 64}", "ARG VARIANT": "cpu", "runners/fake/wattdock_fake.py": "1" * 64}
RUN = ("run", *SMALL, "--locked")
ABSENT = f"sha256:{'0' * 64}"
NOT_BUILT = dict.fromkeys(("repo_digest", "image_id", "base_digest"), "not built")


def recipe(inputs: Mapping[str, str]) -> Recipe:
    return Recipe(inputs, {"BASE": "base", "VARIANT": "cpu"}, None, "2026-11-21T12:00:00+00:00")


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
def pushed_image(fake_image: Containers, registry: str, client: DockerClient) -> Iterator[Containers]:
    """The fake backend's image, saying what it was made from, as the registry has it."""
    with tagged("locked") as name:
        build_on(fake_image.image.name, name, {}, labels=labels_from(recipe(INPUTS)))
        repository = f"{registry}/wattdock-fake"
        client.images.get(name).tag(repository, "latest")
        client.images.push(repository, tag="latest")
        yield find_containers(name, backend="fake")


@pytest.fixture
def locked(pushed_image: Containers, registry: str, client: DockerClient, tmp_path: Path) -> Locked:
    """The command, with a lock of that image."""
    home = user_home(tmp_path)
    (home / "work").mkdir()
    give_to_user(home / "work")
    entry = from_image("fake", pushed_image, recipe(INPUTS), registry=registry)
    command = Locked(home, home / "work", containers_image=pushed_image, client=client, entry=entry)
    command.lock()
    return command


def test_a_locked_run_says_by_what_its_image_was_pinned_and_counts_as_pinned(locked: Locked) -> None:
    """As an unprivileged user; everything that a reader needs to get the image again is in the row."""
    done = locked(*RUN)
    assert done.returncode == 0, done.stderr
    digest = locked.entry.repo_digest
    assert done.stderr.startswith(f"launcher: docker (locked image {digest}; change with no --locked)")
    [row] = locked.results()
    seen, inside = row["environment"], row["environment"]["container"]
    assert (seen["image_digest"], inside["locked"], inside["locked_digest"]) == (digest, True, digest)
    assert inside["image_id"] == locked.entry.image_id
    assert (inside["inputs_sha256"], inside["image_store"]) == (locked.entry.inputs_sha256, "classic")
    assert inside["lock_sha256"] == lock_sha256(locked.home / "images.lock")
    [check] = [check for check in row["audit"]["checks"] if check["name"] == "image pinned"]
    assert (check["status"], check["figure"]) == ("pass", digest)


def test_a_tag_that_moved_to_other_bits_changes_nothing(locked: Locked, fake_image: Containers, registry: str) -> None:
    """Neither here nor in the registry is it the tag that counts."""
    repository = f"{registry}/wattdock-fake"
    locked.client.images.get(fake_image.image.id).tag(repository, "latest")
    locked.client.images.push(repository, tag="latest")
    assert locked.client.images.get(f"{repository}:latest").id != locked.entry.image_id
    assert locked(*RUN).returncode == 0
    [row] = locked.results()
    assert row["environment"]["container"]["image_id"] == locked.entry.image_id


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_id": ABSENT}, "is not the locked one: its id is sha256:"),
        ({"platform": "linux/arm64"}, "it is for linux/amd64, locked is linux/arm64"),
        ({"repo_digest": f"x@{ABSENT}"}, f"image x@{ABSENT} is not there; get it with: wattdock images pull fake"),
        (
            {"repo_digest": None, "image_id": ABSENT, "unresolved": NOT_BUILT},
            "is not there; only the machine that built it has it, no registry does",
        ),
        (
            {"repo_digest": None, "image_id": None, "unresolved": NOT_BUILT},
            "the lock pins no image for fake: repo_digest: not built; image_id: not built",
        ),
    ],
    ids=["other id", "other platform", "missing digest", "missing id", "nothing resolved"],
)
def test_what_is_not_the_locked_image_is_refused_with_what_differs(
    changes: dict[str, Any], words: str, locked: Locked
) -> None:
    """Nothing is pulled, nothing falls back."""
    locked.lock(**changes)
    assert words in locked.refused()


def test_an_image_built_from_other_inputs_is_refused_with_their_names(locked: Locked) -> None:
    """Its name and its labels alone would not tell."""
    others = {**INPUTS, "runners/fake/wattdock_fake.py": "2" * 64, "build/wheels/fake/x-1-py3-none-any.whl": "3" * 64}
    locked.lock(inputs=others, inputs_sha256=inputs_sha256(others))
    assert (
        "it was built from other inputs: runners/fake/wattdock_fake.py differs, "
        "build/wheels/fake/x-1-py3-none-any.whl is missing" in locked.refused()
    )


def test_an_entry_changed_by_hand_is_a_mistake_in_the_lock(locked: Locked) -> None:
    """Before any engine is asked."""
    file = locked.home / "images.lock"
    file.write_text(file.read_text().replace("1" * 64, "4" * 64))
    assert "images.fake: inputs_sha256 is" in locked.refused()


@pytest.mark.parametrize(
    ("more", "other"),
    [
        (("--launcher", "process"), "launcher: process"),
        (("--set", "container.image=x"), "container.image"),
        (("--set", "runner_python=/usr/bin/python3"), "runner_python"),
    ],
)
def test_what_would_be_another_image_excludes_the_lock(more: tuple[str, ...], other: str, locked: Locked) -> None:
    """It would be silently ignored otherwise, on one side or the other."""
    assert f"container.locked (--locked) and {other} exclude each other" in locked.refused(*more)


def test_the_engine_settings_that_pass_into_a_locked_container_are_said_and_stored(locked: Locked) -> None:
    """An image by digest is half of what decides how an engine runs; secrets get nowhere."""
    given = {"NCCL_NTHREADS": "2", "CUDA_LAUNCH_BLOCKING": "1", "HF_TOKEN": "hf_not_to_be_seen"}
    done = locked(*RUN, env=given)
    assert done.returncode == 0, done.stderr
    [said] = [line for line in done.stderr.splitlines() if "; variables that reach the runner: " in line]
    assert "NCCL_NTHREADS=2" in said
    assert "CUDA_LAUNCH_BLOCKING" not in said
    [row] = locked.results()
    stored = row["environment"]["variables"]
    assert (stored["NCCL_NTHREADS"], "CUDA_LAUNCH_BLOCKING" in stored) == ("2", False)
    assert "hf_not_to_be_seen" not in json.dumps(row) + done.stderr


def test_a_study_is_not_resumed_under_another_digest_of_the_same_bits(locked: Locked, registry: str) -> None:
    """Its passes were not held against that one; nor is it under a lock that names no digest."""
    assert locked(*RUN).returncode == 0
    repository = f"{registry}/wattdock-fake-again"
    locked.client.images.get(locked.entry.image_id).tag(repository, "latest")
    locked.client.images.push(repository, tag="latest")
    other = next(one for one in locked.client.images.get(f"{repository}:latest").attrs["RepoDigests"] if "again" in one)
    locked.lock(repo_digest=other)
    assert f"fake's locked digest {locked.entry.repo_digest} → {other}" in locked.refused("--resume")
    locked.lock(repo_digest=None, unresolved=NOT_BUILT)
    assert f"fake's locked digest {locked.entry.repo_digest} → None" in locked.refused("--resume")
    locked.lock()
    resumed = locked(*RUN, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "1 experiment done before" in resumed.stderr


def test_a_bundle_of_a_locked_run_is_measured_again_under_its_own_lock(locked: Locked) -> None:
    """The lock in use here meanwhile names another image; the one in the bundle counts."""
    assert locked(*RUN).returncode == 0
    made = locked("bundle", "create", "results", "--output", "b.tar")
    assert made.returncode == 0, made.stderr
    locked.lock(image_id=ABSENT)
    again = locked("reproduce", "b.tar", "--output-dir", "again", "--json")
    # One restart has no interval: undecided, which is 10.
    assert again.returncode == 10, again.stderr
    found = json.loads(again.stdout)
    assert found["differences"] == []
    row = json.loads((locked.folder / found["experiments"][0]["reproduced"] / "result.json").read_text())
    inside = row["environment"]["container"]
    assert (inside["locked"], inside["locked_digest"]) == (True, locked.entry.repo_digest)
    assert inside["image_id"] == locked.entry.image_id
