"""Leases between real processes of real users."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from unprivileged import UID, popen_as_user, unable, user_home

from wattdock.errors import PreflightError
from wattdock.host import leases
from wattdock.host.leases import CPU, MACHINE, LeaseRequest, hold, holders

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENDERS = Path(__file__).with_name("contenders.py")
OTHER_UID = UID + 1


HOLD = """
import sys, time
from pathlib import Path
from wattdock.errors import PreflightError
from wattdock.host.leases import LeaseRequest, hold, holders, ready_folder
folder = Path(sys.argv[1])
try:
    with hold(LeaseRequest(tuple(sys.argv[3:]), sys.argv[2], "theirs"), print, ready_folder(folder)):
        print("held", flush=True)
        time.sleep(60)
except PreflightError as error:
    print(error, flush=True)
    print(holders(folder))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = user_home(tmp_path) / "leases"
    made.mkdir()
    made.chmod(leases.FOLDER_MODE)
    return made


def start(folder: Path, *command: str, uid: int = UID) -> subprocess.Popen[str]:
    """Start a program of another user."""
    home = folder.parent
    process: subprocess.Popen[str] = popen_as_user(
        [sys.executable, *command], env={"HOME": str(home)}, cwd=home, uid=uid, stdout=subprocess.PIPE, text=True
    )
    return process


@contextmanager
def another_user(folder: Path, exclusive: str, *names: str) -> Iterator[subprocess.Popen[str]]:
    """A process of another user that holds these leases."""
    process = start(folder, "-c", HOLD, str(folder), exclusive, *names)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def ours(
    folder: Path, *names: str, exclusive: str = "gpus", wait_s: float = 0
) -> AbstractContextManager[tuple[int, ...]]:
    return hold(LeaseRequest(names, exclusive, "ours", wait_s), lambda line: None, folder)  # type: ignore[arg-type]


def refused(folder: Path, *names: str, exclusive: str = "gpus", wait_s: float = 0) -> str:
    with pytest.raises(PreflightError) as caught, ours(folder, *names, exclusive=exclusive, wait_s=wait_s):
        pass
    return str(caught.value)


def test_a_hundred_contenders_of_two_users_for_four_gpus_all_finish_and_never_overlap(folder: Path) -> None:
    """Killed ones too, ten of which died holding what the others waited for."""
    crowds = [start(folder, str(CONTENDERS), str(folder), "50", str(uid), uid=uid) for uid in (UID, OTHER_UID)]
    lines = [line.split() for crowd in crowds for line in crowd.communicate(timeout=120)[0].splitlines()]
    assert [crowd.returncode for crowd in crowds] == [0, 0]
    assert len({start for _, start, _ in lines}) == 100
    for name in {name for name, _, _ in lines}:
        times = sorted((int(start), int(end)) for gpu, start, end in lines if gpu == name)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(times)), name
    if os.getuid() == 0:
        assert {file.stat().st_uid for file in folder.iterdir()} <= {UID, OTHER_UID}
    assert holders(folder) == {}


def test_a_lease_says_who_holds_it_since_when_and_for_what(folder: Path) -> None:
    """To other users, in the refusal and in the inventory."""
    with another_user(folder, "gpus", "GPU-a") as process:
        holder = holders(folder)["GPU-a"]
        assert (holder.pid, holder.experiment) == (process.pid, "theirs")
        assert holder.user
        # Two that each hold what the other needs would wait for ever.
        assert f"GPU-a is leased by {holder}" in refused(folder, "GPU-b", "GPU-a", "GPU-c")
        assert set(holders(folder)) == {"GPU-a"}
        with ours(folder, "GPU-b"):
            assert set(holders(folder)) == {"GPU-a", "GPU-b"}


def test_a_holder_killed_with_sigkill_leaves_nothing_that_blocks(folder: Path) -> None:
    """Its file and its name in it stay; they count for nothing."""
    with another_user(folder, "machine", "GPU-a") as process:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert json.loads((folder / "GPU-a.lease").read_text())["experiment"] == "theirs"
    assert holders(folder) == {}
    with ours(folder, "GPU-a", exclusive="machine"):
        assert holders(folder)["GPU-a"].experiment == "ours"


@pytest.mark.parametrize(
    ("theirs", "mine", "name", "said"),
    [
        ("machine", "machine", "GPU-b", "theirs"),
        ("machine", "gpus", "GPU-b", "theirs"),
        ("gpus", "machine", "GPU-b", "theirs"),
        ("gpus", "gpus", CPU, "cpu is leased by"),
        ("gpus", "gpus", "GPU-b", None),
    ],
)
def test_a_machine_to_oneself_excludes_everybody_and_a_shared_one_others_on_its_cpu(
    folder: Path, theirs: str, mine: str, name: str, said: str | None
) -> None:
    """They would share its cores; on other GPUs of a shared machine nobody is in the way."""
    with another_user(folder, theirs, "GPU-a", *([CPU] if name == CPU else [])):
        if said:
            assert said in refused(folder, name, exclusive=mine)
        else:
            with ours(folder, name, exclusive=mine):
                assert set(holders(folder)) == {"GPU-a", name}


def test_who_waits_gets_the_lease_when_it_is_free_and_says_for_whom_it_waits(folder: Path) -> None:
    """And nobody waits longer than asked."""
    told: list[str] = []
    with another_user(folder, "machine", "GPU-a") as process:
        assert "waited 0.5 s" in refused(folder, "GPU-a", exclusive="machine", wait_s=0.5)
        threading.Timer(0.7, process.kill).start()
        with hold(LeaseRequest(("GPU-a",), "machine", "ours", 30), told.append, folder):
            assert holders(folder)[MACHINE].experiment == "ours"
    assert len(told) == 1
    assert "waiting up to 30 s: this machine is in exclusive use by" in told[0]


def test_looking_does_not_refuse_anybody(folder: Path) -> None:
    """`gpus --watch` locks for microseconds, again and again."""
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            holders(folder)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(200):
            with ours(folder, "GPU-a", exclusive="machine"):
                pass
    finally:
        stop.set()
        watcher.join()


def test_a_note_cannot_steer_the_terminal_of_who_reads_it(folder: Path) -> None:
    """The files are open to all."""
    with ours(folder, "GPU-a"):
        note = {"user": "\x1b[2Jana", "pid": 1, "experiment": "x" * 5_000, "since_utc": ""}
        (folder / "GPU-a.lease").write_text(json.dumps(note)[:4_000])
        assert "does not name" in str(holders(folder)["GPU-a"])
        (folder / "GPU-a.lease").write_text(json.dumps(note | {"experiment": "x" * 500}))
        assert holders(folder)["GPU-a"].user == "[2Jana"
        assert len(holders(folder)["GPU-a"].experiment) < 200


@pytest.mark.skipif(os.getuid() != 0, reason="makes folders of other users")
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("chmod 755 {0}; chown 0:0 {0}", "cannot write to the lease folder {0}: permission denied"),
        ("chmod 755 {0}; chown 0:0 {0}", "install -d -m 1777 {0}"),
        ("install -m 600 /dev/null {0}/machine.lease", "machine.lease: Permission denied; remove it, or chmod 666 it"),
        ("ln -s {0}/../victim {0}/machine.lease", "cannot use the lease"),
        ("mkdir {0}/machine.lease", "cannot use the lease"),
    ],
)
def test_a_folder_or_a_file_that_cannot_be_used_is_named_and_links_are_not_followed(
    folder: Path, spoil: str, said: str
) -> None:
    """In a folder open to all, anybody can lay a link to somebody's file; the way out is in the line."""
    victim = folder.parent / "victim"
    victim.write_text("precious")
    victim.chmod(0o666)
    subprocess.run(["sh", "-c", spoil.format(folder)], check=True)
    assert said.format(folder) in start(folder, "-c", HOLD, str(folder), "machine", "GPU-a").communicate(timeout=240)[0]
    assert victim.read_text() == "precious"


@pytest.mark.skipif(unable() is not None, reason="cannot mount here")
@pytest.mark.parametrize(
    ("options", "said"),
    [("size=4k", "No space left on device; make room"), ("ro", "cannot write to the lease folder")],
)
def test_a_full_or_read_only_file_system_is_a_clear_error_and_holds_nothing(
    folder: Path, options: str, said: str
) -> None:
    """A lease whose holder nobody could see is not taken."""
    fill = f"dd if=/dev/zero of={folder}/filler bs=4k count=1 status=none" if options == "size=4k" else "true"
    script = (
        f'mount -t tmpfs -o {options} tmpfs {folder} && {fill} && exec {sys.executable} -c "$0" {folder} gpus GPU-a'
    )
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, HOLD], capture_output=True, text=True, timeout=120)
    assert said in done.stdout, done.stderr
    assert done.stdout.strip().endswith("{}")


def test_the_folder_is_made_open_to_all_whatever_the_umask(tmp_path: Path) -> None:
    """The first user on a machine makes it for all."""
    before = os.umask(0o077)
    try:
        made = leases.ready_folder(tmp_path / "new" / "leases")
        with ours(made, "GPU-a"):
            pass
    finally:
        os.umask(before)
    assert leases.is_shared(made)
    assert {file.stat().st_mode & 0o777 for file in made.iterdir()} == {0o666}
    assert sorted(file.name for file in made.iterdir()) == ["GPU-a.lease", "machine.lease"]


@pytest.mark.parametrize(
    ("kind", "refuses"), [("nfs4", True), ("cifs", True), ("fuse.sshfs", True), ("ext4", False), ("tmpfs", False)]
)
def test_a_network_file_system_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, refuses: bool
) -> None:
    """Locks there are between machines, or do not hold at all."""
    folder = tmp_path / "with blank" / "leases"
    point = str(folder.parent.resolve()).replace(" ", "\\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        f"2 1 0:5 / {point} rw - autofs systemd-1 rw\n"
        f"3 2 0:6 / {point} rw,relatime shared:1 - {kind} server:/export rw\n"
    )
    monkeypatch.setattr(leases, "MOUNTS", mounts)
    if refuses:
        with pytest.raises(PreflightError, match=rf"network file system \({kind}\)"):
            leases.ready_folder(folder)
    else:
        assert leases.ready_folder(folder) == folder


def test_the_folder_is_the_one_named_else_the_first_default_that_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of a machine has to come to the same answer, also one who could make a better folder later."""
    lock, shm = tmp_path / "lock", tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setattr(leases, "DEFAULTS", (lock / "wattdock", shm / "wattdock"))
    monkeypatch.delenv(leases.SETTING, raising=False)
    assert leases.folder_in_use() == shm / "wattdock"
    lock.mkdir()
    assert leases.folder_in_use() == shm / "wattdock"
    (shm / "wattdock").rmdir()
    assert leases.folder_in_use() == lock / "wattdock"
    (shm / "wattdock").mkdir()
    assert leases.folder_in_use() == lock / "wattdock"
    monkeypatch.setenv(leases.SETTING, str(tmp_path / "mine"))
    assert leases.folder_in_use() == tmp_path / "mine"
