"""Which messages of libraries mean that memory ran out."""

from __future__ import annotations

import pytest

from wattdock_runner.errors import lacks_memory


@pytest.mark.parametrize(
    ("message", "is_lack"),
    [
        ("CUDA out of memory. Tried to allocate 1144.41 GiB", True),
        ("driver error CUDA_ERROR_OUT_OF_MEMORY", True),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes", True),
        ("libgomp.so.1: cannot allocate memory in static TLS block", False),
        ("unknown argument --memory", False),
    ],
)
def test_a_lack_of_memory_is_told_from_other_errors(message: str, is_lack: bool) -> None:
    """On it depend the row's cause and its advice."""
    assert lacks_memory(message) is is_lack
