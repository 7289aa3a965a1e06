"""Containers whose coordinator is gone: how that is told, and the process that removes them."""

from __future__ import annotations

import fcntl
import socketserver
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

from wattdock.launch.engine import is_held, is_orphan, place_of, remove_socket_folder
from wattdock.launch.process import KEEPER

if TYPE_CHECKING:
    from pathlib import Path


def labels(lock: Path, *, owner: int = 1500) -> dict[str, str]:
    return {"wattdock.alive": str(lock), "wattdock.owner": str(owner)}


def test_a_held_lock_is_a_living_coordinator_and_looking_does_not_take_it(tmp_path: Path) -> None:
    """Two that ask at once do not take each other for the coordinator."""
    lock = tmp_path / "lock"
    with lock.open("w") as held, lock.open() as asking:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert is_held(lock)
        fcntl.flock(held, fcntl.LOCK_UN)
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert not is_held(lock)


def test_a_lock_that_is_gone_belongs_to_nobody(tmp_path: Path) -> None:
    """A coordinator that ended removes it, so what still runs is an orphan."""
    assert is_orphan(labels(tmp_path / "absent"), uid=1500)


def test_what_another_user_started_is_left_to_them_but_not_by_root(tmp_path: Path) -> None:
    """Another user's lock cannot even be looked at."""
    assert not is_orphan(labels(tmp_path / "absent", owner=1600), uid=1500)
    assert is_orphan(labels(tmp_path / "absent", owner=1600), uid=0)


def test_of_a_labelled_folder_only_the_socket_is_removed(tmp_path: Path) -> None:
    """Whoever may start containers may also write labels."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("x")
    (precious / "r.sock").touch()
    remove_socket_folder({"wattdock.folder": str(precious)})
    assert [file.name for file in precious.iterdir()] == ["thesis"]


def test_a_lock_whose_folder_is_another_from_here_says_nothing(tmp_path: Path) -> None:
    """In a container, or under a private /tmp, a living coordinator's lock looks gone; its runner must not be."""
    lock = tmp_path / "run" / "lock"
    lock.parent.mkdir()
    seen_by_its_coordinator = {**labels(lock), "wattdock.alive_in": place_of(lock)}
    assert is_orphan(seen_by_its_coordinator, uid=1500)
    elsewhere = labels(tmp_path / "other" / "run" / "lock") | {"wattdock.alive_in": place_of(lock)}
    assert not is_orphan(elsewhere, uid=1500)


def test_no_coordinator_outlives_a_restart_of_the_machine(tmp_path: Path) -> None:
    """Whatever lies at its lock's path by now."""
    lock = tmp_path / "run" / "lock"
    boot, _, folder = place_of(lock).partition(" ")
    assert not is_orphan({**labels(lock), "wattdock.alive_in": f"{boot} 1:1"}, uid=1500)
    assert is_orphan({**labels(lock), "wattdock.alive_in": f"{boot[::-1]} {folder}"}, uid=1500)


def test_a_keeper_asks_until_the_container_is_gone(tmp_path: Path) -> None:
    """It holds the leases meanwhile: whoever gets the GPUs next must not find the container on them."""
    answers = [500, 409, 404]
    asked: list[str] = []

    class Engine(BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            asked.append(self.path)
            self.send_response(answers.pop(0))
            self.end_headers()

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None:
            pass

    folder = tmp_path / "socket"
    folder.mkdir()
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "e.sock"), Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [*KEEPER, "container", str(tmp_path / "e.sock"), "abc", str(folder)]
        subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120, check=True)
        server.shutdown()
    assert asked == ["/containers/abc?force=true&v=true"] * 3
    assert not folder.exists()
