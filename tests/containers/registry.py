"""A real registry on loopback: Debian's docker-registry."""

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
http: {addr: "127.0.0.1:%d"}
"""
PATIENCE_S = 120


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Yield the address of a registry of its own; an engine must be this machine's to reach it."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("needs Debian's docker-registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "registry.yml").write_text(CONFIG % (folder / "registry", port))
    command = [program, "serve", str(folder / "registry.yml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline_s = time.monotonic() + PATIENCE_S
        while not _answers(port):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
        process.terminate()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
