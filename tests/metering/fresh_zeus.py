"""Zeus keeps the GPUs and CPUs it found for a process's life; tests change them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def fresh_zeus() -> Iterator[None]:
    """Let Zeus forget, afterwards, the GPUs and CPUs that it found inside."""
    import zeus.device.cpu
    import zeus.device.gpu

    try:
        yield
    finally:
        zeus.device.gpu._gpus = None
        zeus.device.gpu.nvml_is_available.cache_clear()
        zeus.device.cpu._cpus = None
        zeus.device.cpu.rapl_is_available.cache_clear()
