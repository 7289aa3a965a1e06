"""docker-compose on a real engine, as two real users of one server."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from containers.engines import image_there
from unprivileged import UID, popen_as_user

from wattdock.images.labels import recipe_of
from wattdock.images.lock import write_lock
from wattdock.images.locking import from_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker import DockerClient
    from docker.models.containers import Container

    from wattdock.launch.engine import Containers

DOCKER = Path(__file__).parents[2] / "docker"
SMALL = "--model shape:tiny-llama --passes 1 --batch-size 2 --max-output-tokens 4 --wait 120 --set warmup.passes=0"
LONG = "--model shape:tiny-llama --passes 1 --batch-size 1 --max-output-tokens 8 --min-duration-s 600"
PATIENCE_S = 120
BOTH = ("-f", "compose.yaml", "-f", "compose.gpu.yaml")


@dataclass(frozen=True)
class User:
    """Somebody who may use the engine, with a copy of the files that compose reads."""

    uid: int
    home: Path
    shared: Path
    engine: str
    coordinator: str

    @property
    def own(self) -> Path:
        """Where this user's runs keep everything."""
        return self.shared / "users" / str(self.uid)

    def start(self, *words: str) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] = popen_as_user(
            [self.home / "docker/compose.sh", *words],
            env={
                "HOME": str(self.home),
                "DOCKER_HOST": self.engine,
                "WATTDOCK_HOME": str(self.shared),
                "WATTDOCK_COORDINATOR": self.coordinator,
                # The tests' engine has no network to give.
                "WATTDOCK_NETWORK": "none",
                "WATTDOCK_REAP_S": "1",
            },
            cwd=self.home,
            uid=self.uid,
            groups=(UID,),
            reach=(self.shared,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return process

    def __call__(self, *words: str) -> str:
        with self.start(*words) as process:
            out, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
        return out

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in self.own.glob("results/2*/result.json")]


@pytest.fixture(scope="module")
def coordinator_image() -> Containers:
    """The coordinator's image; its tests name themselves as skipped where compose or images are missing."""
    if shutil.which("docker-compose") is None:
        pytest.skip("needs docker-compose 1.29")
    image_there("wattdock-pytorch")
    return image_there("wattdock-coordinator")


@pytest.fixture
def users(coordinator_image: Containers, tmp_path: Path, client: DockerClient) -> Iterator[tuple[User, User]]:
    """Two users, and a shared folder as root would make it."""
    if os.getuid() != 0:
        pytest.skip("needs root to be two users")
    # Short, for the sockets' paths.
    shared = Path(tempfile.mkdtemp(prefix="wd-"))
    shared.chmod(0o1777)
    made = []
    for uid in (UID, UID + 1):
        home = tmp_path / str(uid)
        shutil.copytree(DOCKER, home / "docker")
        (home / "tmp").mkdir()
        for path in (home, *home.rglob("*")):
            os.chown(path, uid, uid)
        engine, image = coordinator_image.engine, coordinator_image.image
        made.append(User(uid, home, shared, engine.address, image.name))
    yield made[0], made[1]
    for container in ours(client):
        container.remove(force=True)
    shutil.rmtree(shared)


def ours(client: DockerClient) -> list[Container]:
    """Return all containers of coordinators, runners and reapers, in any state."""
    found = [
        client.containers.list(all=True, filters={"ancestor": name}, ignore_removed=True)
        for name in ("wattdock-coordinator", "wattdock-pytorch")
    ]
    return [container for some in found for container in some]


def lock_by_id(file: Path) -> None:
    """Lock the PyTorch runner's image as this engine has it."""
    found = image_there("wattdock-pytorch")
    found = dataclasses.replace(found, image=dataclasses.replace(found.image, digests=()))
    recipe = recipe_of(found.image.labels)
    assert recipe is not None
    entry = from_image("pytorch", found, recipe, registry=None)
    write_lock(file, {"pytorch": entry})


def runners(client: DockerClient) -> list[Container]:
    return [*client.containers.list(filters={"label": "wattdock.alive"}, ignore_removed=True)]


def is_free(lease: Path) -> bool:
    with lease.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.slow
def test_two_users_at_once_take_turns_own_their_results_and_leave_nothing(
    users: tuple[User, User], client: DockerClient
) -> None:
    """Up, a run by each, down: the leases of one hold for the other, although each is in a container of its own."""
    one, other = users
    one("up")
    lock_by_id(other.home / "docker/images.lock")
    both = [one.start("run", *SMALL.split()), other.start("run", *SMALL.split(), "--locked")]
    ends = [(*process.communicate(timeout=4 * PATIENCE_S), process.returncode) for process in both]
    assert [code for _, _, code in ends] == [0, 0], ends
    assert any("waiting" in errors for _, errors, _ in ends), ends
    for user in users:
        [row] = user.rows()
        assert (row["status"], row["environment"]["launcher"]) == ("ok", "docker")
        assert {path.stat().st_uid for path in (user.own, *user.own.rglob("*"))} == {user.uid}
    inside = [user.rows()[0]["environment"]["container"] for user in users]
    assert [seen["locked"] for seen in inside] == [False, True]
    assert inside[0]["image_id"] == inside[1]["image_id"]
    passes = [next(span for span in user.rows()[0]["spans"] if span["name"] == "pass") for user in users]
    first, second = sorted(passes, key=lambda span: int(span["start_ns"]))
    assert first["end_ns"] < second["start_ns"]
    one("down")
    other("down")
    assert ours(client) == []
    assert list(one.shared.rglob("*.sock")) == []
    assert all(is_free(lease) for lease in (one.shared / "leases").glob("*.lease"))


@pytest.mark.slow
def test_the_reaper_ends_a_runner_whose_coordinators_container_was_killed(
    users: tuple[User, User], client: DockerClient
) -> None:
    """All processes of that container go with it, its runner's keeper too; a living one's runner stays."""
    one, _ = users
    one("up")
    running = one.start("run", *LONG.split())
    wait_until(lambda: runners(client) and b"Generate: began" in runners(client)[0].logs())
    # The reaper has looked meanwhile, and again.
    time.sleep(3)
    [runner] = runners(client)
    [coordinator] = client.containers.list(filters={"label": "com.docker.compose.service=coordinator"})
    coordinator.kill()
    running.communicate(timeout=PATIENCE_S)
    wait_until(lambda: runner not in runners(client))
    one("down")


def wait_until(condition: Any) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.2)


def test_with_a_gpu_the_coordinator_gets_all_of_them_and_no_more_than_nvml_needs(
    users: tuple[User, User], coordinator_image: Containers
) -> None:
    """Read from what the runtime was told, at the place where NVIDIA's hook would add devices and libraries."""
    noted = Path(coordinator_image.engine.address.removeprefix("unix://")).parent / "hook" / "config.json"
    if not noted.parent.is_dir():
        pytest.skip("this engine has no stand-in for NVIDIA's hook; tests/containers/engine.sh starts one that has")
    one, _ = users
    one("config")
    noted.unlink(missing_ok=True)
    files = [word for name in ("compose.yaml", "compose.gpu.yaml") for word in ("-f", str(one.home / "docker" / name))]
    subprocess.run(
        ["docker-compose", *files, "run", "--rm", "-T", "coordinator", "--version"],
        cwd=one.home / "docker",
        env={
            **os.environ,
            "DOCKER_HOST": one.engine,
            "WATTDOCK_NETWORK": "none",
            "WATTDOCK_COORDINATOR": one.coordinator,
        },
        check=True,
        capture_output=True,
    )
    told = json.loads(noted.read_text())
    environment = dict(entry.split("=", 1) for entry in told["process"]["env"])
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert not any((told["process"]["capabilities"] or {}).values())
    assert "pid" not in {one["type"] for one in told["linux"]["namespaces"]}


@pytest.mark.parametrize("client_words", [("docker", "compose"), ("docker-compose",)], ids=" ".join)
def test_both_files_together_are_valid(client_words: tuple[str, ...], users: tuple[User, User]) -> None:
    """For compose v2 and for 1.29."""
    if subprocess.run([*client_words, "version"], capture_output=True, check=False).returncode:
        pytest.skip(f"{' '.join(client_words)} is not here")
    one, _ = users
    one("config")
    files = [word for name in ("compose.yaml", "compose.gpu.yaml") for word in ("-f", str(one.home / "docker" / name))]
    done = subprocess.run(
        [*client_words, *files, "config"], cwd=one.home / "docker", capture_output=True, text=True, check=True
    )
    assert f"{one.shared}:{one.shared}" in done.stdout
    assert "warning" not in done.stderr.lower()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"WATTDOCK_HOME": "/absent"}, "/absent is not there; as root: install -d -m 1777 /absent"),
        ({"WATTDOCK_HOME": "relative"}, "relative is not there"),
        ({"WATTDOCK_HOME": f"/tmp{'/.' * 40}"}, "is too long for sockets' paths"),
        ({"DOCKER_HOST": "tcp://127.0.0.1:1"}, "is no Unix socket; set DOCKER_HOST to unix://..."),
        ({"DOCKER_HOST": "unix:///absent.sock"}, "no engine's socket at /absent.sock; start an engine"),
    ],
)
def test_what_is_missing_is_named_before_anything_starts(changes: dict[str, str], words: str, tmp_path: Path) -> None:
    """In one line, with what to do."""
    shutil.copytree(DOCKER, tmp_path / "docker")
    if "DOCKER_HOST" not in changes:
        changes = {"DOCKER_HOST": os.environ.get("DOCKER_HOST", ""), **changes}
        if not changes["DOCKER_HOST"]:
            pytest.skip("needs an engine named by DOCKER_HOST")
    env = {"PATH": os.environ["PATH"], "WATTDOCK_HOME": str(tmp_path), **changes}
    done = subprocess.run([tmp_path / "docker/compose.sh", "run"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("wattdock: ")
    assert words in done.stderr
