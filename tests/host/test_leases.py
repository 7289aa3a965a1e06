"""Leases between real processes of real users."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from unprivileged import UID, popen_as_user, unable, user_home

from wattdock.errors import PreflightError
from wattdock.host import leases
from wattdock.host.leases import CPU, MACHINE, Wanted, held, holders

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENDERS = Path(__file__).with_name("contenders.py")
OTHER_UID = UID + 1
HOLD = """
import sys, time
from pathlib import Path
from wattdock.host.leases import Wanted, held
with held(Wanted(tuple(sys.argv[3:]), sys.argv[2], "theirs"), print, Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = user_home(tmp_path) / "leases"
    made.mkdir()
    made.chmod(leases.FOLDER_MODE)
    return made


@contextmanager
def another_user(folder: Path, exclusive: str, *names: str, uid: int = UID) -> Iterator[subprocess.Popen[str]]:
    """A process of another user that holds these leases."""
    command = [sys.executable, "-c", HOLD, str(folder), exclusive, *names]
    home = folder.parent
    process = popen_as_user(command, env={"HOME": str(home)}, cwd=home, uid=uid, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def ours(folder: Path, *names: str, exclusive: str = "gpus", wait_s: float = 0, **more: object) -> Iterator[None]:
    with held(Wanted(names, exclusive, "ours", wait_s), lambda line: None, folder):  # type: ignore[arg-type]
        yield


def refused(folder: Path, *names: str, **more: str) -> str:
    with pytest.raises(PreflightError) as caught, ours(folder, *names, **more):  # type: ignore[arg-type]
        pass
    return str(caught.value)


def test_a_hundred_contenders_of_two_users_for_four_gpus_all_finish_and_never_overlap(folder: Path) -> None:
    """Killed ones too, ten of which died holding what the others waited for."""
    home = folder.parent
    crowds = [
        popen_as_user(
            [sys.executable, str(CONTENDERS), str(folder), "50", str(uid)],
            env={"HOME": str(home)},
            cwd=home,
            uid=uid,
            stdout=subprocess.PIPE,
            text=True,
        )
        for uid in (UID, OTHER_UID)
    ]
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
        assert f"GPU-a is leased by {holder}" in refused(folder, "GPU-a", "GPU-b")
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
    ("theirs", "mine", "both"),
    [("machine", "machine", False), ("machine", "gpus", False), ("gpus", "machine", False), ("gpus", "gpus", True)],
)
def test_a_machine_to_oneself_excludes_everybody_a_shared_one_nobody(
    folder: Path, theirs: str, mine: str, both: bool
) -> None:
    """On different GPUs, so that only the machine is at stake."""
    with another_user(folder, theirs, "GPU-a"):
        if both:
            with ours(folder, "GPU-b", exclusive=mine):
                return
        assert "theirs" in refused(folder, "GPU-b", exclusive=mine)


def test_two_measurements_on_the_cpu_exclude_each_other_even_where_the_machine_is_shared(folder: Path) -> None:
    """They would share its cores; one on a GPU may go on beside."""
    with another_user(folder, "gpus", CPU):
        assert "cpu is leased by" in refused(folder, CPU, exclusive="gpus")
        with ours(folder, "GPU-a"):
            pass


def test_who_waits_gets_the_lease_when_it_is_free_and_says_for_whom_it_waits(folder: Path) -> None:
    """And nobody waits longer than asked."""
    told: list[str] = []
    with another_user(folder, "machine", "GPU-a") as process:
        assert "waited 0.5 s" in refused_after(0.5, folder)
        threading.Timer(0.7, process.kill).start()
        with held(Wanted(("GPU-a",), "machine", "ours", 30), told.append, folder):
            assert holders(folder)[MACHINE].experiment == "ours"
    assert len(told) == 1
    assert "waiting up to 30 s: this machine is measured on by" in told[0]


def refused_after(wait_s: float, folder: Path) -> str:
    with pytest.raises(PreflightError) as caught, ours(folder, "GPU-a", exclusive="machine", wait_s=wait_s):
        pass
    return str(caught.value)


def test_what_could_not_be_had_together_is_not_kept_in_part(folder: Path) -> None:
    """Two that each hold what the other needs would wait for ever."""
    with another_user(folder, "gpus", "GPU-b"):
        refused(folder, "GPU-a", "GPU-b", "GPU-c")
        assert set(holders(folder)) == {"GPU-b"}


def test_a_child_that_was_given_the_lease_keeps_it_until_it_ends(folder: Path) -> None:
    """A coordinator may be killed while its runner is still on the GPU."""
    with ExitStack() as stack:
        lease_fds = stack.enter_context(held(Wanted(("GPU-a",), "machine", "ours"), lambda line: None, folder))
        child = subprocess.Popen(["sleep", "60"], pass_fds=lease_fds)
    assert holders(folder)["GPU-a"].experiment == "ours"
    child.kill()
    child.wait()
    assert holders(folder) == {}


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


def as_user(code: str, folder: Path) -> str:
    """What a lease attempt says as an unprivileged user."""
    attempt = (
        "from pathlib import Path\nfrom wattdock.errors import PreflightError\n"
        f"from wattdock.host.leases import ready_folder\nfrom wattdock.host.leases import Wanted, held\n"
        f"folder = Path({str(folder)!r})\ntry:\n    {code}\nexcept PreflightError as error:\n    print(error)\n"
    )
    home = folder.parent
    process = popen_as_user(
        [sys.executable, "-c", attempt], env={"HOME": str(home)}, cwd=home, stdout=subprocess.PIPE, text=True
    )
    return str(process.communicate(timeout=240)[0])


TAKE = "with held(Wanted(('GPU-a',), 'machine', 'ours'), print, ready_folder(folder)): print('held')"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="makes folders of other users")


@needs_root
def test_a_folder_that_one_may_not_write_to_is_named_with_what_to_do(folder: Path) -> None:
    """Its owner, or root, opens it; or another one is chosen."""
    folder.chmod(0o755)
    os.chown(folder, 0, 0)
    said = as_user(TAKE, folder)
    assert f"cannot write to the lease folder {folder}: permission denied" in said
    assert f"install -d -m 1777 {folder}" in said
    assert "WATTDOCK_LEASES" in said


@needs_root
def test_a_lease_file_that_one_may_not_open_is_named(folder: Path) -> None:
    """Somebody made it by hand."""
    (folder / "machine.lease").touch(mode=0o600)
    assert "machine.lease: Permission denied; remove it, or chmod 666 it" in as_user(TAKE, folder)


def test_what_a_killed_process_of_the_same_number_left_stands_in_nobodys_way(folder: Path) -> None:
    """Process ids are used again, and containers that share the folder have the same ones."""
    (folder / f".machine.lease.{os.getpid()}").touch(mode=0o600)
    with ours(folder, "GPU-a"):
        assert "GPU-a" in holders(folder)


@needs_root
@pytest.mark.parametrize("link", ["symlink", "folder"])
def test_what_stands_in_a_lease_s_place_is_not_followed(folder: Path, link: str) -> None:
    """In a folder open to all, anybody can lay a link to somebody's file."""
    victim = folder.parent / "victim"
    victim.write_text("precious")
    victim.chmod(0o666)
    place = folder / "machine.lease"
    place.symlink_to(victim) if link == "symlink" else place.mkdir()
    assert "cannot use the lease" in as_user(TAKE, folder)
    assert victim.read_text() == "precious"


@needs_root
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
    attempt = (
        "from pathlib import Path\nfrom wattdock.errors import PreflightError\nimport sys\n"
        "from wattdock.host.leases import ready_folder\n"
        "from wattdock.host.leases import Wanted, held, holders\n"
        f"folder = Path(sys.argv[1])\ntry:\n    {TAKE}\nexcept PreflightError as error:\n"
        "    print(error, holders(folder))\n"
    )
    script = f'mount -t tmpfs -o {options} tmpfs {folder} && {fill} && exec {sys.executable} -c "$0" {folder}'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, attempt], capture_output=True, text=True, timeout=120
    )
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
    """Locks there are between machines, or hold not at all."""
    folder = tmp_path / "with blank" / "leases"
    escaped = str(tmp_path.resolve()).replace(" ", "\\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        f"2 1 0:5 / {escaped}/with\\040blank rw,relatime shared:1 - {kind} server:/export rw\n"
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


def test_a_lease_file_that_was_replaced_before_it_was_locked_is_not_the_lease(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody after us would open another file, and measure beside us."""
    lock = leases._lock
    replaced: list[int] = []

    def lock_what_was_replaced(descriptor: int, kind: int) -> bool:
        if not replaced:
            replaced.append(descriptor)
            (folder / f"{MACHINE}{leases.SUFFIX}").unlink()
        return lock(descriptor, kind)

    monkeypatch.setattr(leases, "_lock", lock_what_was_replaced)
    with held(Wanted((CPU,), "machine", "one"), print, folder):
        assert set(holders(folder)) == {CPU, MACHINE}
