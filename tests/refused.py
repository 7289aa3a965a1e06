"""Expect an error by its class, its cause and the values that it names, never by its sentence."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from wattdock.errors import Cause, WattdockError

if TYPE_CHECKING:
    from collections.abc import Iterator

E = TypeVar("E", bound=BaseException)


@contextmanager
def raises(kind: type[E], *values: object, cause: Cause | int | None = None) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of a class inside the block.

    Args:
        values: What it names: a file, a setting, a number, each as text.
        cause: A `WattdockError`'s cause, or an OSError's number; None for any.
    """
    with pytest.raises(kind) as caught:
        yield caught
    require(caught.value, *values, cause=cause)


def require(error: Any, *values: object, cause: Cause | int | None = None) -> None:
    """Assert an error's cause, and the values that it names."""
    if cause is not None:
        assert (error.cause if isinstance(error, WattdockError) else error.errno) == cause, error
    missing = [value for value in values if str(value) not in str(error)]
    assert not missing, f"{missing} not in: {error}"
