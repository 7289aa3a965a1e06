"""docker-compose on a real engine, as two real users of one server."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from containers.engines import image_there
from launch.standins import wait_until
from seams.launch import LockedImage, place_of, write_lock
from unprivileged import UID, popen_as_user

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from docker import DockerClient
    from docker.models.containers import Container
    from seams.launch import Image

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
    exported: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where this user's runs keep everything."""
        return self.shared / "users" / str(self.uid)

    def start(self, *words: str) -> subprocess.Popen[str]:
        places = {"HOME": str(self.home), "DOCKER_HOST": self.engine, "WATTDOCK_HOME": str(self.shared)}
        # The tests' engine has no network to give.
        settings = {"WATTDOCK_COORDINATOR": self.coordinator, "WATTDOCK_NETWORK": "none", "WATTDOCK_REAP_S": "1"}
        process: subprocess.Popen[str] = popen_as_user(
            [self.home / "docker/compose.sh", *words],
            env={**places, **settings, **self.exported},
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
        return [json.loads(file.read_text()) for file in self.folder.glob("results/2*/result.json")]


@pytest.fixture(scope="module")
def coordinator_image() -> Image:
    """The coordinator's image; its tests name themselves as skipped where compose or images are missing."""
    if shutil.which("docker-compose") is None:
        pytest.skip("needs docker-compose 1.29")
    image_there("wattdock-pytorch")
    return image_there("wattdock-coordinator")


@pytest.fixture
def users(coordinator_image: Image, tmp_path: Path, client: DockerClient) -> Iterator[tuple[User, User]]:
    """Two users, and a shared folder as root would make it."""
    if os.getuid() != 0:
        pytest.skip("needs root to be two users")
    # Short, for the sockets' paths.
    shared = Path(tempfile.mkdtemp(prefix="wd-"))
    for folder in (shared, shared / "users", shared / "leases"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o1777)
    engine, image = coordinator_image.engine.address, coordinator_image.name
    homes = [home_of(uid, tmp_path) for uid in (UID, UID + 1)]
    yield User(UID, homes[0], shared, engine, image), User(UID + 1, homes[1], shared, engine, image)
    for container in ours(client):
        container.remove(force=True)
    shutil.rmtree(shared)


def home_of(uid: int, folder: Path) -> Path:
    """Make a user's home, with the files that compose reads."""
    home = folder / str(uid)
    shutil.copytree(DOCKER, home / "docker")
    (home / "tmp").mkdir()
    for path in (home, *home.rglob("*")):
        os.chown(path, uid, uid)
    return home


def ours(client: DockerClient) -> list[Container]:
    """Return all containers of coordinators, runners and reapers, in any state."""
    names = ("wattdock-coordinator", "wattdock-pytorch")
    lists = (client.containers.list(all=True, filters={"ancestor": name}, ignore_removed=True) for name in names)
    return list(itertools.chain.from_iterable(lists))


def runners(client: DockerClient) -> list[Container]:
    return [*client.containers.list(filters={"label": "wattdock.alive"}, ignore_removed=True)]


def is_free(lease: Path) -> bool:
    with lease.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_two_users_at_once_take_turns_own_their_results_and_leave_nothing(
    users: tuple[User, User], client: DockerClient
) -> None:
    """Up, a run by each, down: the leases of one hold for the other, although each is in a container of its own."""
    ana, bob = users
    ana("up")
    image = image_there("wattdock-pytorch")
    write_lock(bob.home / "docker/images.lock", {"pytorch": LockedImage(digest=image.id, base="base")})
    both = [ana.start("run", *SMALL.split()), bob.start("run", *SMALL.split(), "--locked")]
    ends = [(*process.communicate(timeout=4 * PATIENCE_S), process.returncode) for process in both]
    assert [code for _, _, code in ends] == [0, 0], ends
    assert any("waiting" in errors for _, errors, _ in ends), ends
    for user in users:
        [row] = user.rows()
        assert (row["status"], row["environment"]["launcher"]) == ("ok", "docker")
        assert {path.stat().st_uid for path in (user.folder, *user.folder.rglob("*"))} == {user.uid}
    inside = [user.rows()[0]["environment"]["container"] for user in users]
    assert [container["locked"] for container in inside] == [False, True]
    assert inside[0]["image_id"] == inside[1]["image_id"]
    passes = [next(span for span in user.rows()[0]["spans"] if span["name"] == "pass") for user in users]
    first, second = sorted(passes, key=lambda span: int(span["start_ns"]))
    assert first["end_ns"] < second["start_ns"]
    ana("down")
    bob("down")
    assert ours(client) == []
    assert list(ana.shared.rglob("*.sock")) == []
    assert all(is_free(lease) for lease in (ana.shared / "leases").glob("*.lease"))


def test_the_reaper_ends_a_runner_whose_coordinators_container_was_killed(
    users: tuple[User, User], client: DockerClient
) -> None:
    """All processes of that container go with it, its runner's keeper too; a living one's runner stays."""
    ana, _ = users
    ana("up")
    running = ana.start("run", *LONG.split())
    wait_until(lambda: runners(client) and b"Generate: began" in runners(client)[0].logs())
    # The reaper has looked meanwhile, and again.
    time.sleep(3)
    [runner] = runners(client)
    [coordinator] = client.containers.list(filters={"label": "com.docker.compose.service=coordinator"})
    coordinator.kill()
    running.communicate(timeout=PATIENCE_S)
    wait_until(lambda: runner not in runners(client))
    ana("down")


def test_the_reaper_of_root_ends_what_another_users_dead_coordinator_left_and_nothing_else(
    users: tuple[User, User], coordinator_image: Image, client: DockerClient
) -> None:
    """Users' folders are their own, and root in a container without capabilities may not look into them."""
    ana, bob = users
    bob("config")
    dead, living = (marked(client, coordinator_image, bob, name) for name in ("dead", "living"))
    root = replace(ana, uid=0)
    held = os.open(bob.folder / "tmp/living", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    root("up")
    wait_until(lambda: dead not in runners(client))
    assert living in runners(client)
    wait_until(lambda: not (bob.folder / "run/dead").exists())
    root("down")
    os.close(held)
    living.remove(force=True)


def marked(client: DockerClient, image: Image, user: User, name: str) -> Container:
    """Start a container that does nothing, with the labels, the folder and the socket of a user's runner."""
    alive, socket = user.folder / "tmp" / name, user.folder / "run" / name / "r.sock"
    for folder in (alive, socket.parent):
        folder.mkdir(mode=0o700)
    socket.touch()
    for path in (alive, socket.parent, socket):
        os.chown(path, user.uid, user.uid)
    labels = {"alive": str(alive), "alive_in": place_of(alive), "owner": str(user.uid), "folder": str(socket.parent)}
    return client.containers.run(
        image.id,
        ["600"],
        entrypoint=["sleep"],
        labels={f"wattdock.{label}": value for label, value in labels.items()},
        network_mode="none",
        detach=True,
    )


def test_with_a_gpu_the_coordinator_gets_all_of_them_and_no_more_than_nvml_needs(
    users: tuple[User, User], coordinator_image: Image
) -> None:
    """Read from the runtime's configuration, at the place where NVIDIA's hook would add devices and libraries."""
    noted = Path(coordinator_image.engine.address.removeprefix("unix://")).parent / "hook" / "config.json"
    if not noted.parent.is_dir():
        pytest.skip("this engine has no stand-in for NVIDIA's hook; tests/containers/engine.sh starts one that has")
    ana, _ = users
    ana("config")
    noted.unlink(missing_ok=True)
    subprocess.run(
        ["docker-compose", *BOTH, "run", "--rm", "-T", "coordinator", "--version"],
        cwd=ana.home / "docker",
        env=os.environ
        | {"DOCKER_HOST": ana.engine, "WATTDOCK_NETWORK": "none", "WATTDOCK_COORDINATOR": ana.coordinator},
        check=True,
        capture_output=True,
    )
    runtime_config = json.loads(noted.read_text())
    environment = dict(entry.split("=", 1) for entry in runtime_config["process"]["env"])
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert not any((runtime_config["process"]["capabilities"] or {}).values())
    assert "pid" not in {namespace["type"] for namespace in runtime_config["linux"]["namespaces"]}


def test_a_run_is_the_callers_whatever_is_exported_and_whoever_used_the_same_checkout_before(
    users: tuple[User, User], tmp_path: Path
) -> None:
    """In a checkout that somebody else owns, with a blank in its path."""
    ana, bob = users
    checkout = tmp_path / "a checkout"
    shutil.copytree(DOCKER, checkout / "docker")
    replace(ana, uid=0, home=checkout)("config")
    caller = replace(bob, home=checkout, exported={"UID": "7", "GID": "7", "COMPOSE_PROFILES": "run"})
    said = yaml.safe_load(caller("config"))
    assert said["services"]["reaper"]["user"] == f"{bob.uid}:{bob.uid}"
    assert said["services"]["reaper"]["working_dir"] == str(bob.folder)
    assert "UID=0\n" in (checkout / "docker/.env").read_text()


def test_users_of_rootless_engines_keep_folders_of_their_own(users: tuple[User, User]) -> None:
    """Each is root inside, and themselves outside; only what the engine says of itself is made up here."""
    for user in users:
        client = user.home / "docker"
        (client / "docker").write_text("#!/bin/sh\ntest $1 = info && echo '[name=seccomp name=rootless]'\n")
        (client / "docker").chmod(0o755)
        rootless = replace(user, exported={"PATH": f"{client}:{os.environ['PATH']}"})
        service = yaml.safe_load(rootless("config"))["services"]["reaper"]
        assert service["user"] == "0:0"
        assert service["environment"]["WATTDOCK_HOME"] == str(user.folder)
        assert user.folder.stat().st_uid == user.uid


@pytest.mark.parametrize("is_link", [False, True], ids=["folder", "link"])
def test_a_users_folder_that_somebody_else_made_is_not_used(is_link: bool, users: tuple[User, User]) -> None:
    """Whoever may write there could change the models and kernels that are measured."""
    ana, bob = users
    made = ana.folder.with_name("made") if is_link else ana.folder
    made.mkdir()
    os.chown(made, bob.uid, bob.uid)
    made.chmod(0o777)
    if is_link:
        ana.folder.symlink_to(made)
    code, errors = config_of(ana)
    assert (code, str(ana.folder) in errors) == (3, True), errors


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[User]:
    """A user whose engine is a socket that nobody answers, and whose shared folders are not made yet."""
    if os.getuid() != 0:
        pytest.skip("needs root to be two users")
    # Short, for the socket's path.
    shared = Path(tempfile.mkdtemp(prefix="wd-"))
    shared.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(shared / "docker.sock"))
        yield User(UID, home_of(UID, tmp_path), shared, f"unix://{shared}/docker.sock", "absent")
    shutil.rmtree(shared)


def config_of(user: User) -> tuple[int, str]:
    """Return exit code and errors of the command that only looks."""
    with user.start("config") as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, errors


@pytest.mark.parametrize(
    ("folder", "mode", "why"),
    [
        ("users", 0o755, "cannot write in {}"),
        ("leases", 0o755, "cannot write in {}"),
        ("leases", 0o777, "{} lets users remove each other's files"),
        (".", 0o755, "{}/users is not there"),
    ],
)
def test_shared_folders_that_are_not_everybodys_are_refused_with_roots_command(
    folder: str, mode: int, why: str, stranger: User
) -> None:
    """Nothing is started; with folders as that command makes them, the same caller gets further."""
    shared = stranger.shared
    command = f"install -d -m 1777 {shared}/users {shared}/leases"
    if folder != ".":
        subprocess.run(command.split(), check=True)
    (shared / folder).chmod(mode)
    assert config_of(stranger) == (3, f"wattdock: {why.format(shared / folder)}; as root: {command}\n")
    subprocess.run(command.split(), check=True)
    code, errors = config_of(stranger)
    assert code == 0 or "docker-compose" in errors


@pytest.mark.parametrize("folder", ["users", "leases"])
@pytest.mark.parametrize("is_link", [False, True], ids=["folder", "link"])
def test_shared_folders_that_another_user_made_are_not_used(folder: str, is_link: bool, stranger: User) -> None:
    """An owner could put away what others have in them: a lease that is held, or a user's folder."""
    shared = stranger.shared
    for made in (shared / "users", shared / "leases", shared / "theirs", shared):
        made.mkdir(exist_ok=True)
        made.chmod(0o1777)
    if is_link:
        (shared / folder).rmdir()
        (shared / folder).symlink_to("theirs")
    os.chown(shared / folder, UID + 1, UID + 1, follow_symlinks=False)
    code, errors = config_of(stranger)
    assert (code, str(shared / folder) in errors) == (3, True), errors


@pytest.mark.parametrize("client_words", [("docker", "compose"), ("docker-compose",)], ids=" ".join)
def test_both_files_together_are_valid(client_words: tuple[str, ...], users: tuple[User, User]) -> None:
    """For compose v2 and for 1.29."""
    if subprocess.run([*client_words, "version"], capture_output=True, check=False).returncode:
        pytest.skip(f"{' '.join(client_words)} is not here")
    ana, _ = users
    ana("config")
    # The suite's own WATTDOCK_HOME would stand before the one of `.env`.
    environ = {name: value for name, value in os.environ.items() if name != "WATTDOCK_HOME"}
    done = subprocess.run(
        [*client_words, *BOTH, "config"],
        cwd=ana.home / "docker",
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{ana.shared}:{ana.shared}" in done.stdout
    assert "warning" not in done.stderr.lower()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"WATTDOCK_HOME": "/absent"}, "install -d -m 1777 /absent/users /absent/leases"),
        ({"WATTDOCK_HOME": "relative"}, "relative is not there"),
        ({"WATTDOCK_HOME": "/tmp/a b"}, "WATTDOCK_HOME is /tmp/a b,"),
        ({"WATTDOCK_HOME": "/tmp/a\nUID=0"}, "neither may hold blanks, quotes or any of : # $ \\"),
        ({"WATTDOCK_HOME": "/tmp/a:/etc"}, "neither may hold blanks, quotes or any of : # $ \\"),
        ({"WATTDOCK_HOME": f"/tmp{'/.' * 40}"}, "is too long for sockets' paths"),
        ({"DOCKER_HOST": "tcp://127.0.0.1:1"}, "is no Unix socket; set DOCKER_HOST to unix://..."),
        ({"DOCKER_HOST": "unix:///absent.sock"}, "no engine's socket at /absent.sock; start a container engine"),
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
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
