"""A real Slurm on this machine: a controller and two simulated nodes of two GPUs each, run by the unprivileged user.

Everything stands in one folder, listens on free ports of the loopback interface and is stopped by its processes' ids.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unprivileged import UID, give_to_user, popen_as_user, short_name

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = ("munged", "slurmctld", "slurmd")
MUNGE = ("key-file", "socket", "pid-file", "log-file", "seed-file")
NODES, GPUS_EACH = ("n1", "n2"), 2
# Ends what hangs.
LONGEST_START_S = 30.0
# Where Debian has daemons.
PATH = f"{os.environ['PATH']}:/usr/sbin"
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={uid}
SlurmdUser={uid}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
KillWait=15
MailProg=/bin/true
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=64 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=64 Gres=gpu:2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=10
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""
GRES = "NodeName=n1 Name=gpu File={folder}/gpu[0-1]\nNodeName=n2 Name=gpu File={folder}/gpu[2-3]\n"


def missing() -> str | None:
    """Return why there can be no Slurm here; None where there can."""
    absent = [name for name in (*PROGRAMS, "sbatch", "squeue") if shutil.which(name, path=PATH) is None]
    return f"needs {', '.join(absent)} (on Debian: slurmctld slurmd slurm-client munge)" if absent else None


@dataclass
class Cluster:
    """A running Slurm.

    Attributes:
        folder: Its configuration, state and logs.
        env: What its commands and daemons need in their environment.
        over: Files of this machine, and what its jobs see in their places, below `folder`.
    """

    folder: Path
    env: dict[str, str]
    over: dict[str, str]
    daemons: dict[str, subprocess.Popen[Any]] = field(default_factory=dict)

    @property
    def within(self) -> tuple[str, ...]:
        """A command of root's that gives the unprivileged user the name that Slurm asks of every user.

        Also a /dev/shm of its own, by which engines tell whether two processes are on one node.
        """
        if os.getuid() != 0:
            return ()
        own_memory = "mount -t tmpfs -o mode=1777 tmpfs /dev/shm"
        binds = (f"mount --bind {self.folder}/{name} {place}" for place, name in self.over.items())
        mounts = " && ".join((own_memory, *binds))
        return ("unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh")

    def start(self, name: str, *words: str | Path) -> None:
        """Start a daemon in the foreground, as the unprivileged user."""
        program = shutil.which(str(words[0]), path=PATH)
        assert program
        with (self.folder / f"{name}.out").open("ab") as log:
            how: dict[str, Any] = {"stdout": log, "stderr": log, "start_new_session": True, "within": self.within}
            self.daemons[name] = popen_as_user([program, *words[1:]], env=self.env, cwd=self.folder, **how)

    def start_controller(self) -> None:
        self.start("slurmctld", "slurmctld", "-D", "-f", self.folder / "slurm.conf")

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """End a daemon and wait until it has."""
        process = self.daemons.pop(name)
        process.send_signal(number)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __call__(self, *words: str) -> str:
        """Return what a command of Slurm's prints."""
        how: dict[str, Any] = {"within": self.within, "stdout": subprocess.PIPE, "text": True}
        with popen_as_user(
            [shutil.which(words[0]) or words[0], *words[1:]], env=self.env, cwd=self.folder, **how
        ) as process:
            return str(process.communicate(timeout=60)[0])

    def wait_until_idle(self) -> None:
        """Return once every node takes jobs."""
        deadline = time.monotonic() + LONGEST_START_S
        while (states := self("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split()) != ["idle"] * len(NODES):
            logs = "".join(file.read_text()[-2000:] for file in sorted(self.folder.glob("*.log")))
            assert time.monotonic() < deadline, f"nodes are {states}\n{logs}"
            time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [of_one.getsockname()[1] for of_one in sockets]
    for of_one in sockets:
        of_one.close()
    return ports


@contextmanager
def cluster(home: Path, env: dict[str, str], *, stat: bool = False) -> Iterator[Cluster]:
    """Yield a Slurm below `home`, the unprivileged user's; `env` is for its jobs' daemons, too.

    Args:
        stat: Whether its jobs see the file `stat` of its folder as /proc/stat.
    """
    folder = home / "slurm"
    for place in (folder, folder / "state", *(folder / f"spool-{node}" for node in NODES)):
        place.mkdir()
        give_to_user(place)
    short = short_name(folder)
    for number in range(len(NODES) * GPUS_EACH):
        (folder / f"gpu{number}").symlink_to(os.devnull)
    uid = UID if os.getuid() == 0 else os.getuid()
    facts = {"folder": short, "host": socket.gethostname().split(".")[0], "ports": free_ports(3), "uid": uid}
    (folder / "slurm.conf").write_text(CONF.format(**facts))
    (folder / "gres.conf").write_text(GRES.format(**facts))
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    give_to_user(folder / "munge.key")
    for name, line in (("passwd", f"wd:x:{UID}:{UID}::{home}:/bin/sh"), ("group", f"wd:x:{UID}:")):
        (folder / name).write_text(f"{Path(f'/etc/{name}').read_text()}{line}\n")
    over = {"/etc/passwd": "passwd", "/etc/group": "group"}
    if stat:
        (folder / "stat").touch()
        over["/proc/stat"] = "stat"
    running = Cluster(folder, {**env, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}, over)
    own = [
        f"--{name}={short}/munge.{name.split('-')[0]}"
        for name in ("key-file", "socket", "pid-file", "log-file", "seed-file")
    ]
    try:
        running.start("munged", "munged", "--foreground", "--force", *own)
        running.start_controller()
        for node in NODES:
            running.start(node, "slurmd", "-D", "-N", node, "-f", folder / "slurm.conf")
        running.wait_until_idle()
        yield running
    finally:
        for name in reversed([*running.daemons]):
            with suppress(ProcessLookupError):
                running.stop(name)


if __name__ == "__main__":
    with cluster(Path(sys.argv[1]), {"HOME": sys.argv[1]}) as shown:
        print(f"export SLURM_CONF={shown.env['SLURM_CONF']}", flush=True)
        signal.pause()
