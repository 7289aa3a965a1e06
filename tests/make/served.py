"""A real server of the live page, run as a real unprivileged user, and simulated GPUs for it to show."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fake_nvml
import httpx
from fake_nvml import FakeGpu, constant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from command import Command

FIRST, SECOND, THIRD = map(fake_nvml.uuid_of, (1, 2, 3))
GPUS = (
    FakeGpu(uuid=FIRST, profile=(constant(300),), utilization_percent=90),
    FakeGpu(uuid=SECOND, profile=(constant(200),)),
    FakeGpu(uuid=THIRD, name="NVIDIA L4", memory_used_bytes=9_000_000_000),
)


@dataclass(frozen=True)
class Served:
    """A server that answers: where, and its process."""

    url: str
    process: subprocess.Popen[str]

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30, **options)

    def now(self) -> dict[str, Any]:
        """Return the state of the next update."""
        with httpx.stream("GET", self.url + "/events", timeout=30) as stream:
            lines = (line for line in stream.iter_lines() if line.startswith("data: "))
            next(lines)
            return dict(httpx.Response(200, text=next(lines).removeprefix("data: ")).json())


@contextmanager
def served(by: Command, *words: str, env: dict[str, str] | None = None, **how: Any) -> Iterator[Served]:
    """Yield a server that the user of `by` has started, and end it."""
    with by.start("serve", *words, env=env, stdout=subprocess.PIPE, **how) as process:
        try:
            assert process.stdout is not None
            yield Served(process.stdout.readline().split()[0].rstrip("/"), process)
        finally:
            process.terminate()
