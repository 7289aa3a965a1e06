"""Two nodes on one machine: network namespaces joined by a veth pair, a time namespace, GPUs and leases of each."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from command import WATTDOCK
from fake_nvml import FakeGpu, constant
from unprivileged import give_to_user, popen_as_user

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from command import Command

RELAY = Path(__file__).with_name("relay.py")
HEAD, NODE = "10.77.0.1", "10.77.0.2"
AGENT_PORT, RELAY_PORT = 7407, 7408
# Ends what hangs.
LONGEST_S = 60.0
HEAD_W, NODE_W = 300.0, 200.0
HEAD_GPU, NODE_GPU, BYSTANDER = (fake_nvml.uuid_of(number) for number in (1, 2, 12))
_NUMBERS = itertools.count()


def missing() -> str | None:
    """Return why this machine cannot have two nodes; None where it can."""
    if os.getuid() != 0:
        return "network and time namespaces need root"
    if tools := [tool for tool in ("ip", "unshare") if shutil.which(tool) is None]:
        return f"needs {' and '.join(tools)}"
    tried = subprocess.run(["unshare", "--net", "--time", "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() or None if tried.returncode else None


@dataclass(frozen=True)
class TwoNodes:
    """A head and another node, and how something is started on each.

    Attributes:
        offset_s: By how much the node's CLOCK_MONOTONIC is ahead of the head's.
        address: Where the head finds the agent.
        envs: More variables on "head" and "node".
    """

    command: Command
    number: str
    offset_s: int
    address: str
    envs: Mapping[str, Mapping[str, str]]

    @property
    def on_head(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", f"{self.number}h")

    @property
    def on_node(self) -> tuple[str, ...]:
        shifted = ("unshare", "--time", "--monotonic", str(self.offset_s), "--fork", "--kill-child")
        # By a file there vLLM tells whether two processes are on one node.
        own_memory = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o mode=1777 tmpfs /dev/shm; exec "$@"', "sh")
        return ("ip", "netns", "exec", f"{self.number}n", *own_memory, *shifted)

    def env(self, name: str) -> dict[str, str]:
        home = self.command.home
        leases = {"WATTDOCK_LEASES": str(home / f"leases-{name}")}
        return self.command.env({"LD_LIBRARY_PATH": str(home / f"nvml-{name}"), **leases, **self.envs.get(name, {})})

    def run(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        """Start `wattdock run` on the head."""
        words = self.command.words("run", *args)
        kept: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        return popen_as_user(words, env=self.env("head"), cwd=self.command.folder, within=self.on_head, **kept)

    def cut(self) -> None:
        """Take the link down."""
        subprocess.run([*self.on_head, "ip", "link", "set", f"{self.number}h", "down"], check=True)

    def wait_for(self, text: str) -> None:
        """Return once the agent has said a text."""
        deadline_s = time.monotonic() + LONGEST_S
        while text not in (said := (self.command.folder / "agent.log").read_text()):
            assert time.monotonic() < deadline_s, said
            time.sleep(0.05)

    def kill_runner(self) -> None:
        """Kill the node's runner itself, not its keeper."""
        library = f"LD_LIBRARY_PATH={self.command.home / 'nvml-node'}".encode()
        for pid, line in self.command.processes().items():
            is_runner = "-m wattdock_runner" in line and "keeper" not in line
            if is_runner and library in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)

    def end(self, words: str = " agent pair.pem", number: int = signal.SIGTERM) -> None:
        """Send a signal to the agent, or to the command that these words tell."""
        for pid, line in self.command.processes().items():
            if f"{WATTDOCK}{words}" in line and "unshare" not in line:
                os.kill(pid, number)


@contextmanager
def two_nodes(
    command: Command,
    *,
    offset_s: int = 0,
    delays_s: tuple[float, float] | None = None,
    envs: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[TwoNodes]:
    """Yield two nodes with an agent on the other one, whose pairing is `pair.pem` in the command's folder.

    Args:
        delays_s: Of messages to the agent and back, through a relay.
        envs: More variables on "head" and "node".
    """
    if reason := missing():
        pytest.skip(reason)
    number = f"w{os.getpid() % 10_000}{next(_NUMBERS)}"
    nodes = TwoNodes(command, number, offset_s, f"{NODE}:{RELAY_PORT if delays_s else AGENT_PORT}", envs or {})
    for name, uuids, watts in (("head", (HEAD_GPU,), HEAD_W), ("node", (NODE_GPU, BYSTANDER), NODE_W)):
        library, leases = command.home / f"nvml-{name}", command.home / f"leases-{name}"
        library.mkdir()
        leases.mkdir()
        leases.chmod(0o1777)
        fake_nvml.build(library)
        gpus = [FakeGpu(uuid=uuid, profile=(constant(watts if uuid != BYSTANDER else 77.0),)) for uuid in uuids]
        # The library's seconds are of the clock of the process that asks.
        fake_nvml.config(library, gpus=gpus)
        for file in filter(Path.is_file, library.iterdir()):
            give_to_user(file)
    with ExitStack() as stack:
        _joined(stack, number)
        made = command("pair", "pair.pem")
        assert made.returncode == 0, made.stderr
        log = stack.enter_context((command.folder / "agent.log").open("w"))
        words: list[str | Path] = [WATTDOCK, "agent", "pair.pem", "--listen", f"0.0.0.0:{AGENT_PORT}"]
        started = popen_as_user(
            words, env=nodes.env("node"), cwd=command.folder, within=nodes.on_node, stdout=log, stderr=log
        )
        stack.callback(started.wait, LONGEST_S)
        # Its own signal: whoever changes its user no longer dies with its parent.
        stack.callback(nodes.end)
        nodes.wait_for("listening on")
        if delays_s:
            relay = [sys.executable, str(RELAY), str(RELAY_PORT), NODE, str(AGENT_PORT), *map(str, delays_s)]
            within = ["ip", "netns", "exec", f"{number}n"]
            relaying = subprocess.Popen([*within, *relay], stdout=subprocess.PIPE, text=True)
            stack.callback(_end, relaying)
            assert relaying.stdout
            stack.callback(relaying.stdout.close)
            assert relaying.stdout.readline() == "ready\n"
        yield nodes


def _joined(stack: ExitStack, number: str) -> None:
    """Make two network namespaces that a veth pair joins, until the stack ends."""
    names = {f"{number}h": HEAD, f"{number}n": NODE}
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
        stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
    first, second = names
    pair = ["ip", "link", "add", first, "netns", first, "type", "veth", "peer", "name", second, "netns", second]
    subprocess.run(pair, check=True)
    for name, address in names.items():
        within = ["ip", "-n", name]
        subprocess.run([*within, "address", "add", f"{address}/24", "dev", name], check=True)
        for device in (name, "lo"):
            subprocess.run([*within, "link", "set", device, "up"], check=True)


def _end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
