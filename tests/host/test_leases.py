"""Leases between real processes of real users, some of whom mean harm."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
import time
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from host.lease_users import HOLD, OTHER_UID, SEVERAL_USERS, ours, said, start, stranger
from refused import raises
from seams.host import CPU, MACHINE, LeaseRequest, hold, holders, user_name
from unprivileged import UID, kernel_protection

from wattdock.errors import Cause, PreflightError
from wattdock.host import leases

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENDERS = Path(__file__).with_name("contenders.py")
# Dies of SIGKILL, and leaves a child that has the descriptors, too, and tells its number.
LEAVE = "import os\n" + HOLD.replace(
    "time.sleep(60)", "os.fork() and os.kill(os.getpid(), 9); print(os.getpid(), flush=True); time.sleep(60)"
)
# Puts links to a file wherever a lease was or is made, as fast as it can.
SWAP = """
import os, sys
from contextlib import suppress
folder, victim = sys.argv[1:]
print("began", flush=True)
while True:
    for name in {*os.listdir(folder), "GPU-a.lease", "machine.lease", "GPU-a.x.lease", "machine.x.lease"}:
        with suppress(OSError):
            os.rename(f"{folder}/{name}", f"{folder}/{name}.away")
        with suppress(OSError):
            os.symlink(victim, f"{folder}/{name}")
"""
# Whatever can bear the name of a lease, and some that cannot.
PLANTS = """
import socket
os.mkfifo("zz.lease")
os.mkfifo("GPU-a.pipe.lease")
os.mkdir("GPU-a.folder.lease")
os.symlink("../victim", "GPU-a.link.lease")
os.symlink("machine.loop.lease", "machine.loop.lease")
socket.socket(socket.AF_UNIX).bind("GPU-a.socket.lease")
for name in ("GPU-\\x1b[2J.x.lease", "GPU-a.1500.lease", "machine.1500.lease"):
    open(name, "x")
os.umask(0o777)
open("GPU-a.barred.lease", "x")
"""


@pytest.fixture
def victim(folder: Path) -> Iterator[Path]:
    """A file of root's that nobody else may read, and that is as it was at the end."""
    file = folder.parent / "victim"
    file.write_text("precious")
    file.chmod(0o600)
    yield file
    assert (file.read_text(), file.stat().st_mode & 0o777, file.stat().st_uid) == ("precious", 0o600, os.getuid())


@pytest.fixture(params=[0, 1], ids=["unprotected", "protected"])
def kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Links, pipes and files in folders that are open to all: without the kernel's protection, and with it."""
    with kernel_protection(request.param):
        yield


@contextmanager
def begun(process: subprocess.Popen[str], line: str = "held") -> Iterator[subprocess.Popen[str]]:
    """A program that has said so, and is killed in the end."""
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{line}\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def another_user(
    folder: Path, exclusive: str, *names: str, uid: int = UID
) -> AbstractContextManager[subprocess.Popen[str]]:
    """A process of another user that holds these leases."""
    return begun(start(folder, HOLD, str(folder), exclusive, *names, uid=uid))


def refused(folder: Path, *names: str, exclusive: str = "gpus", wait_s: float = 0) -> str:
    """Return the refusal of leases that others hold."""
    with raises(PreflightError, cause=Cause.LEASE_HELD) as caught:  # noqa: SIM117  (the error comes on entering)
        with ours(folder, *names, exclusive=exclusive, wait_s=wait_s):
            pass
    return str(caught.value)


@pytest.mark.slow
def test_a_hundred_contenders_of_two_users_for_four_gpus_all_finish_and_never_overlap(folder: Path) -> None:
    """Killed ones too, ten of which died holding what the others waited for."""
    main = f"import runpy; runpy.run_path({str(CONTENDERS)!r}, run_name='__main__')"
    crowds = [start(folder, main, str(folder), "50", str(uid), uid=uid) for uid in (UID, OTHER_UID)]
    lines = [line.split() for crowd in crowds for line in said(crowd).splitlines()]
    assert [crowd.returncode for crowd in crowds] == [0, 0]
    assert len({start for _, start, _ in lines}) == 100
    for name in {name for name, _, _ in lines}:
        times = sorted((int(start), int(end)) for gpu, start, end in lines if gpu == name)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(times)), name
    if os.getuid() == 0:
        assert {file.stat().st_uid for file in folder.iterdir()} <= {UID, OTHER_UID}
    assert holders(folder) == {}


def test_a_lease_says_who_holds_it_and_since_when(folder: Path) -> None:
    """To other users, in the refusal and in the inventory."""
    began_s = int(time.time())
    with another_user(folder, "gpus", "GPU-a") as process:
        holder = holders(folder)["GPU-a"]
        command = Path(f"/proc/{process.pid}/comm").read_text().strip()
        user = user_name(UID if os.getuid() == 0 else None)
        assert (holder.user, holder.pid, holder.command) == (user, process.pid, command)
        assert began_s <= datetime.fromisoformat(holder.since_utc).timestamp() <= time.time()
        # Two that each hold what the other needs would wait for ever.
        assert str(holder) in refused(folder, "GPU-b", "GPU-a", "GPU-c")
        assert set(holders(folder)) == {"GPU-a"}
        with ours(folder, "GPU-b"):
            assert set(holders(folder)) == {"GPU-a", "GPU-b"}


def test_a_holder_killed_with_sigkill_leaves_nothing_that_blocks(folder: Path) -> None:
    """Its file stays, counts for nothing, and is used again."""
    for _ in range(2):
        with another_user(folder, "machine", "GPU-a") as process:
            process.send_signal(signal.SIGKILL)
            process.wait(60)
    assert holders(folder) == {}
    with ours(folder, "GPU-a", exclusive="machine"):
        assert holders(folder)["GPU-a"].pid == os.getpid()
    owners = sorted(file.stat().st_uid for file in folder.glob("GPU-a.*.lease"))
    assert owners == ([0, UID] if os.getuid() == 0 else [os.getuid()])


@pytest.mark.parametrize(
    ("theirs", "mine", "name", "held"),
    [
        ("machine", "machine", "GPU-b", "machine"),
        ("machine", "gpus", "GPU-b", "machine"),
        ("gpus", "machine", "GPU-b", "GPU-a"),
        ("gpus", "gpus", CPU, "cpu"),
        ("gpus", "gpus", "GPU-b", None),
    ],
)
def test_a_machine_to_oneself_excludes_everybody_and_a_shared_one_others_on_its_cpu(
    folder: Path, theirs: str, mine: str, name: str, held: str | None
) -> None:
    """They would share its cores; on other GPUs of a shared machine nobody is in the way."""
    with another_user(folder, theirs, "GPU-a", *([CPU] if name == CPU else [])):
        if held:
            assert held in refused(folder, name, exclusive=mine)
        else:
            with ours(folder, name, exclusive=mine):
                assert set(holders(folder)) == {"GPU-a", name}


def test_who_waits_gets_the_lease_when_it_is_free_and_says_for_whom_it_waits(folder: Path) -> None:
    """And nobody waits longer than asked."""
    lines: list[str] = []
    with another_user(folder, "machine", "GPU-a") as process:
        assert "0.5 s" in refused(folder, "GPU-a", exclusive="machine", wait_s=0.5)

        def hear(line: str) -> None:
            lines.append(line)
            process.kill()

        with hold(LeaseRequest(("GPU-a",), "machine", 30), hear, folder):
            assert holders(folder)[MACHINE].pid == os.getpid()
    assert "30 s" in lines[0]
    # The last look may find that its holder has just ended.
    assert len([line for line in lines if "waiting" in line]) <= 2


def test_looking_does_not_refuse_anybody(folder: Path) -> None:
    """A reader of leases locks for microseconds, again and again."""
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


@SEVERAL_USERS
@pytest.mark.usefixtures("kernel")
def test_what_a_stranger_puts_into_the_folder_is_no_lease_and_hangs_nobody(folder: Path, victim: Path) -> None:
    """Who opens a pipe waits for its other end, who opens a link gets what it leads to; a name is nobody's property."""
    stranger(folder, PLANTS)
    assert len(list(folder.iterdir())) == 10
    assert holders(folder) == {}
    with ours(folder, "GPU-a", exclusive="machine"):
        assert set(holders(folder)) == {"GPU-a", MACHINE}
        assert "by root" in said(start(folder, HOLD, str(folder), "machine", "GPU-a"))
    with another_user(folder, "machine", "GPU-a"):
        assert user_name(UID) in refused(folder, "GPU-a")


@SEVERAL_USERS
def test_a_file_that_its_owner_lets_nobody_open_yet_is_not_waited_for(folder: Path) -> None:
    """fcntl(2), F_SETLEASE: others' opens wait until the owner has agreed, for 45 s at most, again and again."""
    guard = """if True:
        import fcntl, signal, sys, time
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        file = open(sys.argv[1] + "/GPU-a.x.lease", "x")
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        print("held", flush=True)
        time.sleep(60)
    """
    with begun(start(folder, guard, str(folder), uid=OTHER_UID)):
        began_s = time.monotonic()
        with ours(folder, "GPU-a", exclusive="machine"):
            pass
        assert time.monotonic() - began_s < 30


@SEVERAL_USERS
@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("owner", [0, OTHER_UID], ids=["root's folder", "a stranger's folder"])
def test_links_swapped_in_at_any_moment_lead_root_to_no_file(folder: Path, victim: Path, owner: int) -> None:
    """In root's folder nobody can move root's leases away, and one of somebody else's is not used."""
    place = folder.parent / "open"
    place.mkdir()
    place.chmod(0o1777)
    os.chown(place, owner, owner)
    taken = 0
    with begun(start(folder, SWAP, str(place), str(victim), uid=OTHER_UID), "began"):
        for _ in range(300):
            with suppress(PreflightError), ours(leases.ready_folder(place), "GPU-a", exclusive="machine") as held:
                assert all(path.lstat().st_ino == os.fstat(file).st_ino for path, file in held.items())
                taken += 1
    assert taken == (300 if owner == 0 else 0)


@SEVERAL_USERS
@pytest.mark.usefixtures("kernel")
def test_second_names_for_a_users_leases_do_not_stop_that_user(folder: Path) -> None:
    """Who may link to a file of others could call a lease of theirs by the machine's name, or any file a lease."""
    with another_user(folder, "gpus", "GPU-b"):
        pass
    stranger(folder, "[file] = os.listdir()\nfor name in ('machine', 'GPU-b'): os.link(file, f'{name}.x.lease')")
    with another_user(folder, "gpus", "GPU-b"):
        assert user_name(UID) in refused(folder, "GPU-b")
    assert holders(folder) == {}


@SEVERAL_USERS
def test_a_held_lease_or_lock_counts_under_no_second_name(folder: Path) -> None:
    """Where the kernel lets a neighbour link to what somebody holds, the holder would bar what it does not hold."""
    journal = folder.parent / "journal.jsonl"
    lock = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)"
    locking = start(folder, f"{lock}; print('held', flush=True); time.sleep(60)", str(journal))
    with another_user(folder, "gpus", "GPU-b"), begun(locking):
        [lease] = folder.iterdir()
        for name in ("machine", "GPU-c"):
            os.link(lease, folder / f"{name}.x.lease")
        os.link(journal, folder / "machine.y.lease")
        assert set(holders(folder)) == {"GPU-b"}
        with ours(folder, "GPU-c"):
            assert user_name(UID) in refused(folder, "GPU-b")


def test_a_file_of_our_own_that_is_no_lease_is_left_as_it_is(folder: Path) -> None:
    """Somebody can move one there from a folder without a sticky bit: it must not be opened to all."""
    moved = folder / "GPU-a.x.lease"
    moved.touch(0o600)
    for _ in range(2):
        with ours(folder, "GPU-a") as held:
            assert moved not in held
    assert moved.stat().st_mode & 0o777 == 0o600
    assert len(list(folder.glob("GPU-a.*"))) == 2


@SEVERAL_USERS
def test_the_holder_is_the_kernels_and_what_anybody_writes_is_not_read(folder: Path) -> None:
    """Neither a note, nor a name of a process that steers terminals, nor a time that is none, says who holds what."""
    forge = """if True:
        import ctypes, fcntl, os, sys, time
        path = sys.argv[1] + "/GPU-a.x.lease"
        ctypes.CDLL(None).prctl(15, b"\x1b[2Jroot")
        file = open(path, "w")
        print('{"user": "root", "pid": 1, "experiment": "none"}', file=file, flush=True)
        os.utime(path, (0, int(sys.argv[2])))
        fcntl.flock(file, fcntl.LOCK_EX)
        print("held", flush=True)
        time.sleep(60)
    """
    for modified_s in (2**33, -(2**31)):
        with begun(start(folder, forge, str(folder), str(modified_s), uid=OTHER_UID)) as process:
            holder = holders(folder)["GPU-a"]
            assert (holder.user, holder.pid, holder.command) == (user_name(OTHER_UID), process.pid, "[2Jroot")


@SEVERAL_USERS
@pytest.mark.parametrize("kind", ["LOCK_EX", "LOCK_SH"])
def test_who_locks_a_file_of_somebody_else_is_named_and_not_its_owner(folder: Path, kind: str) -> None:
    """Whoever can read a file can lock it, as they could take the lease itself; nobody waits longer than asked."""
    with another_user(folder, "gpus", "GPU-a"):
        pass
    lock = f"import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.{kind}); print('held', flush=True)"
    [file] = folder.glob("GPU-a.*.lease")
    with begun(start(folder, f"{lock}; time.sleep(60)", str(file), uid=OTHER_UID)) as process:
        assert f"{user_name(OTHER_UID)} (process {process.pid}," in said(
            start(folder, HOLD, str(folder), "gpus", "GPU-a")
        )


def test_a_lease_that_is_removed_or_replaced_while_held_is_told(folder: Path) -> None:
    """Somebody else can hold another one of that name then, and measure."""
    with ours(folder, "GPU-a") as held:
        assert str(leases.fault(held)) == str(leases.unshared(folder))
        assert leases.fault(held, has_node=True) is None
        [path] = held
        path.unlink()
        assert str(path) in str(leases.fault(held))
        path.touch()
        assert str(path) in str(leases.fault(held, has_node=True))
        with another_user(folder, "gpus", "GPU-a"):
            assert "GPU-a" in holders(folder)
        folder.rename(folder.with_name("away"))
        assert str(path) in str(leases.fault(held))
        folder.with_name("away").rename(folder)


@SEVERAL_USERS
def test_a_holder_outside_of_a_process_namespace_holds_for_who_is_inside(folder: Path) -> None:
    """As in a container with its own process ids; the file's owner is known all the same."""
    inside = ("unshare", "--pid", "--fork", "--mount-proc")
    with another_user(folder, "gpus", "GPU-a"):
        words = said(start(folder, HOLD, str(folder), "gpus", "GPU-a", uid=OTHER_UID, within=inside))
    assert (user_name(UID) in words, "not visible" in words) == (True, True)


def test_a_lease_outlives_its_taker_in_a_child_that_has_it_too(folder: Path) -> None:
    """The keeper of a runner, whose coordinator was killed; the number of the dead names nobody."""
    with begun(start(folder, LEAVE, str(folder), "gpus", "GPU-a")) as taker:
        assert taker.stdout is not None
        child = int(taker.stdout.readline())
        taker.wait(60)
        holder = holders(folder)["GPU-a"]
        assert (holder.user, holder.pid) == (user_name(UID if os.getuid() == 0 else None), None)
        os.kill(child, signal.SIGKILL)
    while holders(folder):
        time.sleep(0.01)


@SEVERAL_USERS
def test_root_of_a_rootless_container_and_users_outside_see_each_other(folder: Path) -> None:
    """There root's folder belongs to nobody it knows; what it makes belongs to its user outside."""
    rootless = ("unshare", "--user", "--map-root-user")
    if subprocess.run([*rootless, "true"], check=False).returncode:
        pytest.skip("cannot make user namespaces here")
    with begun(start(folder, HOLD, str(folder), "machine", "GPU-a", namespace=rootless)):
        assert f"{user_name(UID)} (process" in refused(folder, "GPU-b")
    with ours(folder, "GPU-a"):
        assert "GPU-a" in said(start(folder, HOLD, str(folder), "gpus", "GPU-a", namespace=rootless))
