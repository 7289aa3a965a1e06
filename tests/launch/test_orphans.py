"""Containers whose coordinator is gone: how they are recognised, and the process that removes them."""

from __future__ import annotations

import fcntl
import os
import socketserver
import subprocess
import tempfile
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from seams.launch import KEEPER, is_orphan, place_of, remove_socket_folder
from unprivileged import OTHER_UID, UID, short_name

from wattdock.files import is_held, new_folder


def test_a_locked_folder_is_a_living_coordinator_and_asking_does_not_lock_it(tmp_path: Path) -> None:
    """Two callers at once do not take each other for the coordinator; nor do they a stranger's folder or a pipe."""
    with new_folder(tmp_path, "run-") as coordinator:
        assert is_held(coordinator.path, uid=os.getuid())
        assert not is_held(coordinator.path, uid=os.getuid() + 1)
        fcntl.flock(coordinator.descriptor, fcntl.LOCK_SH)
        assert not is_held(coordinator.path, uid=os.getuid())
    os.mkfifo(tmp_path / "pipe")
    assert not is_held(tmp_path / "pipe", uid=os.getuid())


@pytest.mark.skipif(os.geteuid() != 0, reason="two real users need root")
def test_a_neighbours_closed_folder_in_the_place_of_one_that_is_gone_holds_nothing() -> None:
    """Its owner's containers are cleaned up all the same."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        closed = Path(place, "closed")
        closed.mkdir(0o700)
        os.chown(closed, OTHER_UID, OTHER_UID)
        os.seteuid(UID)
        try:
            assert (is_held(closed, uid=UID), is_held(closed, uid=OTHER_UID)) == (False, True)
        finally:
            os.seteuid(0)


@pytest.mark.parametrize(
    ("owner", "uid", "place", "orphan"),
    [
        (1500, 1500, "", True),
        (1500, 1500, "{boot} {folder}", True),
        # Another user's container, which root alone may remove.
        (1600, 1500, "", False),
        (1600, 0, "", True),
        # In a container, or under a private /tmp, the lock of a living coordinator seems absent.
        (1500, 1500, "{boot} 1:1", False),
        # No coordinator outlives a restart of the machine.
        (1500, 1500, "another-boot {folder}", True),
    ],
)
def test_a_container_whose_lock_is_gone_is_an_orphan_if_this_user_would_see_the_lock(
    owner: int, uid: int, place: str, orphan: bool, tmp_path: Path
) -> None:
    """A coordinator that ended removes its lock; one that lives elsewhere must not lose its runner."""
    lock = tmp_path / "run"
    boot, _, folder = place_of(lock).partition(" ")
    labels = {"alive": str(lock), "owner": str(owner), "alive_in": place.format(boot=boot, folder=folder)}
    assert is_orphan({f"wattdock.{name}": value for name, value in labels.items()}, uid=uid) is orphan


@pytest.mark.parametrize("label", [{"alive": "/tmp/\0x"}, {"owner": "9" * 5_000}, {"alive": "/" + "a" * 9_000}])
def test_labels_that_no_coordinator_writes_stop_no_reaper(label: dict[str, str]) -> None:
    """One container of one user must not keep root from removing the others."""
    labels = {"alive": "/nowhere/x", "owner": "1500", "folder": "/tmp/\0"} | label
    named = {f"wattdock.{name}": value for name, value in labels.items()}
    assert not is_orphan(named, uid=0)
    remove_socket_folder(named)


def test_of_a_labelled_folder_only_the_socket_is_removed(tmp_path: Path) -> None:
    """Whoever may start containers may also write labels."""
    (tmp_path / "thesis").touch()
    (tmp_path / "r.sock").touch()
    remove_socket_folder({"wattdock.folder": str(tmp_path)})
    assert [file.name for file in tmp_path.iterdir()] == ["thesis"]


def test_a_keeper_asks_until_the_container_is_gone(tmp_path: Path) -> None:
    """It holds the leases meanwhile: whoever gets the GPUs next must not find the container on them."""
    answers = [500, 409, 404]
    paths: list[str] = []

    class Engine(BaseHTTPRequestHandler):
        def do_DELETE(self) -> None:
            paths.append(self.path)
            self.send_response(answers.pop(0))
            self.end_headers()

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None:
            pass

    folder = tmp_path / "socket"
    folder.mkdir()
    address = str(short_name(tmp_path) / "e.sock")
    with socketserver.ThreadingUnixStreamServer(address, Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [*KEEPER, "container", address, "abc", str(folder)]
        subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120, check=True)
        server.shutdown()
    assert paths == ["/containers/abc?force=true&v=true"] * 3
    assert not folder.exists()
