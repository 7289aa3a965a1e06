"""A real registry, on loopback or where others reach it: Debian's docker-registry."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG = """
version: 0.1
storage: {filesystem: {rootdirectory: %s}}
http: {addr: "%s:%d"}
"""
PATIENCE_S = 120


@contextmanager
def serving(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """Yield the address of a registry of its own; on loopback, an engine must be this machine's to reach it."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("needs Debian's docker-registry")
    with socket.socket() as free:
        free.bind((host, 0))
        port = free.getsockname()[1]
    (folder / "registry.yml").write_text(CONFIG % (folder / "registry", host, port))
    command = [program, "serve", str(folder / "registry.yml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline_s = time.monotonic() + PATIENCE_S
        while not _answers(host, port):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        yield f"{host}:{port}"
        process.terminate()


def _answers(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def address_for_others() -> str:
    """Return this machine's address in its network; skips the test without one."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            # A datagram's socket sends nothing when it is connected. Source: RFC 5737, an address of documentation.
            probe.connect(("198.51.100.1", 9))
        except OSError as error:
            pytest.skip(f"this machine has no network: {error}")
        return str(probe.getsockname()[0])
