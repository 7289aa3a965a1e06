"""Leases between real processes of real users, some of whom mean harm."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from refused import raises
from seams.host import CPU, MACHINE, HeldLeases, LeaseRequest, hold, holders, user_name
from unprivileged import UID, alone, kernel_protection, popen_as_user, unable, user_home

from wattdock.errors import PreflightError
from wattdock.host import leases

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CONTENDERS = Path(__file__).with_name("contenders.py")
OTHER_UID = UID + 1
SEVERAL_USERS = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")

# Holds leases until it is killed, or says why it has none.
HOLD = f"""{alone("host")}
import time
from pathlib import Path
from wattdock.errors import PreflightError
from wattdock.host.leases import LeaseRequest, hold, holders, ready_folder
folder = Path(sys.argv[1])
try:
    with hold(LeaseRequest(tuple(sys.argv[3:]), sys.argv[2]), lambda line: None, ready_folder(folder)):
        print("held", flush=True)
        time.sleep(60)
except PreflightError as error:
    print(error, flush=True)
    print(holders(folder))
"""
# Dies of SIGKILL, and leaves a child that has the descriptors, too, and tells its number.
LEAVE = "import os\n" + HOLD.replace(
    "time.sleep(60)", "os.fork() and os.kill(os.getpid(), 9); print(os.getpid(), flush=True); time.sleep(60)"
)
# Tells for each folder, if it is everybody's, which one it takes by default, and what is said of it.
CHOOSE = f"""{alone("host")}
from pathlib import Path
from wattdock.host import leases
for folder in sys.argv[1:]:
    leases.SHARED = Path(folder)
    with leases.hold(leases.LeaseRequest(("GPU-a",), "machine"), print) as held:
        print(next(iter(held)).parent)
"""
# Says of each folder what is wrong with it.
REFUSED = f"""{alone("host")}
from pathlib import Path
from wattdock.errors import PreflightError
from wattdock.host.leases import ready_folder
for folder in sys.argv[1:]:
    try:
        ready_folder(Path(folder))
    except PreflightError as error:
        print(error)
"""
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
def folder(tmp_path: Path) -> Path:
    return user_home(tmp_path) / "leases"


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


def start(
    folder: Path,
    *command: str,
    uid: int = UID,
    namespace: Sequence[str] = (),
    within: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a Python program of another user; a command that makes a namespace is root's if it is given as `within`."""
    home = folder.parent
    process: subprocess.Popen[str] = popen_as_user(
        [*namespace, sys.executable, "-c", *command],
        env={"HOME": str(home), **(env or {})},
        cwd=home,
        uid=uid,
        within=within,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process


def said(process: subprocess.Popen[str]) -> str:
    """Everything that a program says until it ends."""
    return process.communicate(timeout=240)[0]


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


def stranger(folder: Path, program: str) -> None:
    """Let another user run a program in the folder, as far as it gets."""
    said(start(folder, f"import os\nos.chdir({str(folder)!r})\n{program}", uid=OTHER_UID))


def ours(folder: Path, *names: str, exclusive: str = "gpus", wait_s: float = 0) -> AbstractContextManager[HeldLeases]:
    return hold(LeaseRequest(names, exclusive, wait_s), lambda line: None, folder)  # type: ignore[arg-type]


def refused(folder: Path, *names: str, exclusive: str = "gpus", wait_s: float = 0) -> str:
    with pytest.raises(PreflightError) as caught, ours(folder, *names, exclusive=exclusive, wait_s=wait_s):
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
        assert f"GPU-a is leased by {holder}" in refused(folder, "GPU-b", "GPU-a", "GPU-c")
        assert set(holders(folder)) == {"GPU-a"}
        with ours(folder, "GPU-b"):
            assert set(holders(folder)) == {"GPU-a", "GPU-b"}


def test_a_holder_killed_with_sigkill_leaves_nothing_that_blocks(folder: Path) -> None:
    """Its file stays, counts for nothing, and is used again."""
    for _ in range(2):
        with another_user(folder, "machine", "GPU-a") as process:
            process.send_signal(signal.SIGKILL)
            process.wait(10)
    assert holders(folder) == {}
    with ours(folder, "GPU-a", exclusive="machine"):
        assert holders(folder)["GPU-a"].pid == os.getpid()
    owners = sorted(file.stat().st_uid for file in folder.glob("GPU-a.*.lease"))
    assert owners == ([0, UID] if os.getuid() == 0 else [os.getuid()])


@pytest.mark.parametrize(
    ("theirs", "mine", "name", "words"),
    [
        ("machine", "machine", "GPU-b", "this machine is in exclusive use by"),
        ("machine", "gpus", "GPU-b", "this machine is in exclusive use by"),
        ("gpus", "machine", "GPU-b", "this machine is shared by other measurements: GPU-a by"),
        ("gpus", "gpus", CPU, "cpu is leased by"),
        ("gpus", "gpus", "GPU-b", None),
    ],
)
def test_a_machine_to_oneself_excludes_everybody_and_a_shared_one_others_on_its_cpu(
    folder: Path, theirs: str, mine: str, name: str, words: str | None
) -> None:
    """They would share its cores; on other GPUs of a shared machine nobody is in the way."""
    with another_user(folder, theirs, "GPU-a", *([CPU] if name == CPU else [])):
        if words:
            assert words in refused(folder, name, exclusive=mine)
        else:
            with ours(folder, name, exclusive=mine):
                assert set(holders(folder)) == {"GPU-a", name}


def test_who_waits_gets_the_lease_when_it_is_free_and_says_for_whom_it_waits(folder: Path) -> None:
    """And nobody waits longer than asked."""
    told: list[str] = []
    with another_user(folder, "machine", "GPU-a") as process:
        assert "0.5 s" in refused(folder, "GPU-a", exclusive="machine", wait_s=0.5)

        def hear(line: str) -> None:
            told.append(line)
            process.kill()

        with hold(LeaseRequest(("GPU-a",), "machine", 30), hear, folder):
            assert holders(folder)[MACHINE].pid == os.getpid()
    assert told[0].startswith("waiting up to 30 s: this machine is in exclusive use by")
    # The last look may find that its holder has just ended.
    assert len([line for line in told if "waiting" in line]) <= 2


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


@SEVERAL_USERS
@pytest.mark.usefixtures("kernel")
def test_what_a_stranger_puts_into_the_folder_is_no_lease_and_hangs_nobody(folder: Path, victim: Path) -> None:
    """Who opens a pipe waits for its other end, who opens a link gets what it leads to; a name is nobody's property."""
    stranger(folder, PLANTS)
    assert len(list(folder.iterdir())) == 10
    assert holders(folder) == {}
    with ours(folder, "GPU-a", exclusive="machine"):
        assert set(holders(folder)) == {"GPU-a", MACHINE}
        assert "in exclusive use by root" in said(start(folder, HOLD, str(folder), "machine", "GPU-a"))
    with another_user(folder, "machine", "GPU-a"):
        assert "in exclusive use by" in refused(folder, "GPU-a")


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
        assert "GPU-b is leased by" in refused(folder, "GPU-b")
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
            assert "GPU-b is leased by" in refused(folder, "GPU-b")


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
        words = said(start(folder, HOLD, str(folder), "gpus", "GPU-a"))
        assert f"GPU-a is leased by {user_name(OTHER_UID)} (process {process.pid}," in words


def test_a_lease_that_is_removed_or_replaced_while_held_is_told(folder: Path) -> None:
    """Somebody else can hold another one of that name then, and measure."""
    with ours(folder, "GPU-a") as held:
        assert str(leases.fault(held)) == str(leases.unshared(folder))
        [path] = held
        path.unlink()
        assert f"the lease {path} was removed or replaced" in str(leases.fault(held))
        path.touch()
        assert f"the lease {path} was removed or replaced" in str(leases.fault(held))
        with another_user(folder, "gpus", "GPU-a"):
            assert "GPU-a" in holders(folder)
        folder.rename(folder.with_name("away"))
        assert f"the lease {path} was removed or replaced" in str(leases.fault(held))
        folder.with_name("away").rename(folder)


@SEVERAL_USERS
def test_a_holder_outside_of_a_process_namespace_holds_for_who_is_inside(folder: Path) -> None:
    """As in a container with its own process ids; the file's owner is known all the same."""
    inside = ("unshare", "--pid", "--fork", "--mount-proc")
    with another_user(folder, "gpus", "GPU-a"):
        words = said(start(folder, HOLD, str(folder), "gpus", "GPU-a", uid=OTHER_UID, within=inside))
    assert f"leased by {user_name(UID)} (a process that is not visible here, since" in words


def test_a_lease_outlives_its_taker_in_a_child_that_has_it_too(folder: Path) -> None:
    """The keeper of a runner, whose coordinator was killed; the number of the dead names nobody."""
    with begun(start(folder, LEAVE, str(folder), "gpus", "GPU-a")) as taker:
        assert taker.stdout is not None
        child = int(taker.stdout.readline())
        taker.wait(60)
        user = user_name(UID if os.getuid() == 0 else None)
        assert f"leased by {user} (a process that is not visible here, since" in refused(folder, "GPU-a")
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
        assert f"in exclusive use by {user_name(UID)} (process" in refused(folder, "GPU-b")
    with ours(folder, "GPU-a"):
        assert "GPU-a is leased by" in said(start(folder, HOLD, str(folder), "gpus", "GPU-a", namespace=rootless))


def spoiled(folder: Path, spoils: Sequence[str]) -> list[str]:
    """Return as many folders as there are commands, each made as root makes it and then spoiled by its command."""
    folders = [folder / str(number) for number in range(len(spoils))]
    for place, spoil in zip(folders, spoils, strict=True):
        place.mkdir()
        place.chmod(0o1777)
        subprocess.run(["sh", "-c", spoil.format(place)], check=True)
    return [str(place) for place in folders]


@SEVERAL_USERS
def test_a_folder_that_does_not_serve_is_named_with_the_way_out(folder: Path) -> None:
    """In one line, to its user, and what root has to do about it."""
    words = {
        "chmod 755 {0}": "it cannot be written to",
        "chown 1501 {0}": "it belongs to uid 1501",
        "chmod 777 {0}": "users can remove each other's files there",
        "chmod 770 {0}; chgrp 1500 {0}": "users can remove each other's files there",
        "mv {0} {0}-real; ln -s {0}-real {0}": "Not a directory",
        "rmdir {0}; touch {0}": "Not a directory",
        "rmdir {0}; mkfifo {0}": "Not a directory",
    }
    places = spoiled(folder, list(words))
    remedy = "as root: remove what is there, then mkdir -m 1777 {0}; or name another folder with WATTDOCK_LEASES"
    lines = [
        f"cannot use the lease folder {place}: {why}; {remedy.format(place)}"
        for place, why in zip(places, words.values(), strict=True)
    ]
    assert said(start(folder, REFUSED, *places)).splitlines() == lines


@pytest.mark.skipif(unable() is not None, reason="cannot mount here")
@pytest.mark.parametrize(("options", "words"), [("size=4k,mode=1777", "held"), ("ro", "it cannot be written to")])
def test_a_full_file_system_has_room_for_leases_and_a_read_only_one_is_a_clear_error(
    folder: Path, options: str, words: str
) -> None:
    """Leases are empty files."""
    fill = f"dd if=/dev/zero of={folder}/filler bs=4k count=1 status=none" if "size" in options else "true"
    script = (
        f'mount -t tmpfs -o {options} tmpfs {folder} && {fill} && exec {sys.executable} -c "$0" {folder} gpus GPU-a'
    )
    command = ["unshare", "--mount", "sh", "-c", script, HOLD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    assert words in line


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_root_makes_a_folder_for_all_and_others_one_for_themselves_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    """Nobody but the owner can write to a lease, and everybody can see whether it is locked."""
    before = os.umask(umask)
    try:
        made = leases.ready_folder(tmp_path / "new" / "leases")
        with ours(made, "GPU-a", exclusive="machine") as held:
            modes = {path.stat().st_mode & 0o7777 for path in held}
    finally:
        os.umask(before)
    assert modes == {0o644}
    assert made.stat().st_mode & 0o7777 == (0o1777 if os.getuid() == 0 else 0o700)
    assert (leases.unshared(made) is None) == (os.getuid() == 0)


@pytest.mark.parametrize(
    ("kind", "refuses"), [("nfs4", True), ("cifs", True), ("fuse.sshfs", True), ("ext4", False), ("tmpfs", False)]
)
def test_a_network_file_system_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, refuses: bool
) -> None:
    """Locks there are between machines, or do not hold at all."""
    folder, device = tmp_path / "leases", tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1999 / / rw - ext4 /dev/sda rw\n"
        f"3 2 {os.major(device)}:{os.minor(device)} / /x rw,relatime shared:1 - {kind} server:/export rw\n"
    )
    monkeypatch.setattr(leases, "MOUNTS", mounts)
    if refuses:
        with raises(PreflightError, kind):
            leases.ready_folder(folder)
    else:
        assert leases.ready_folder(folder) == folder


@SEVERAL_USERS
def test_who_finds_no_folder_of_roots_uses_one_alone_and_says_so(folder: Path) -> None:
    """Whoever makes the folder first does not get everybody's leases; measuring goes on, and is not called alone."""
    link = "rmdir {0}; mkdir {0}-real; chmod 1777 {0}-real; ln -s {0}-real {0}"
    spoils = ["true", "rmdir {0}", "chown 1501 {0}", "chmod 777 {0}", link, "rmdir {0}; mkfifo {0}"]
    places = spoiled(folder, spoils)
    shared, *alone = said(start(folder, CHOOSE, *places, env={"WATTDOCK_LEASES": ""})).splitlines()
    assert shared == places[0]
    for wanted, unseen, place in zip(places[1:], alone[::2], alone[1::2], strict=True):
        assert unseen.startswith(f"other users' measurements are not seen: leases lie in {place}; as root: ")
        assert unseen.endswith(f"mkdir -m 1777 {wanted}")
        assert Path(place).name == f"wattdock-leases-{UID}"


@SEVERAL_USERS
def test_who_makes_a_users_own_folder_first_stops_nobody(folder: Path) -> None:
    """In the temporary folder, all names are open to all."""
    folder.rmdir()
    temporary = folder.parent / "tmp"
    temporary.chmod(0o1777)
    stranger(temporary, f"os.mkdir('wattdock-leases-{UID}')")
    words = said(start(folder, CHOOSE, str(folder), env={"WATTDOCK_LEASES": ""}))
    assert words.splitlines()[1] == str(folder.parent / ".local/share/wattdock/leases")


def test_root_makes_the_folder_of_all_where_nobody_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And whoever names another one gets that."""
    monkeypatch.setattr(leases, "SHARED", tmp_path / "lock" / "wattdock")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(leases.SETTING, raising=False)
    alone = tmp_path / f"wattdock-leases-{os.getuid()}"
    assert leases.folder_in_use() == (leases.SHARED if os.getuid() == 0 else alone)
    monkeypatch.setenv(leases.SETTING, str(tmp_path / "mine"))
    assert leases.folder_in_use() == tmp_path / "mine"
