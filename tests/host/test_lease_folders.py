"""Which folder leases lie in, and which folders do not serve."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from host.lease_users import HOLD, SEVERAL_USERS, ours, said, start, stranger
from refused import raises
from unprivileged import UID, alone, unable

from wattdock.errors import PreflightError
from wattdock.host import leases

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    spoils = ["chmod 755 {0}", "chown 1501 {0}", "chmod 777 {0}", "chmod 770 {0}; chgrp 1500 {0}"]
    spoils += ["mv {0} {0}-real; ln -s {0}-real {0}", "rmdir {0}; touch {0}", "rmdir {0}; mkfifo {0}"]
    places = spoiled(folder, spoils)
    for place, line in zip(places, said(start(folder, REFUSED, *places)).splitlines(), strict=True):
        assert (f"mkdir -m 1777 {place}" in line, "WATTDOCK_LEASES" in line) == (True, True)


@pytest.mark.skipif(unable() is not None, reason="cannot mount here")
@pytest.mark.parametrize(("options", "word"), [("size=4k,mode=1777", "held"), ("ro", "WATTDOCK_LEASES")])
def test_a_full_file_system_has_room_for_leases_and_a_read_only_one_is_a_clear_error(
    folder: Path, options: str, word: str
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
    assert word in line


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
        assert (place in unseen, unseen.endswith(f"mkdir -m 1777 {wanted}")) == (True, True)
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
