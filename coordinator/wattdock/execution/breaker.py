"""Gives a backend up whose attempts fail the same way again and again. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattdock.records import Failure


class Breaker:
    """Counts, per backend, attempts in a row that ended in the same kind of failure at the same stage.

    Args:
        limit: So many open it; None never does.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._rows: dict[str, tuple[tuple[str, str], int]] = {}

    def note(self, backend: str, failure: Failure | None, *, measured: bool) -> None:
        """Note how an attempt ended; one that measured something first starts the count again."""
        if failure is None:
            self._rows.pop(backend, None)
            return
        # "pass 2/3" and "pass 1/3" are one stage.
        kind = (failure.kind, failure.stage.split(" ")[0])
        before, count = self._rows.get(backend, (kind, 0))
        self._rows[backend] = (kind, count + 1 if before == kind and not measured else 1)

    def reason(self, backend: str) -> str | None:
        """Return why nothing more of `backend` is attempted; None while it is."""
        (kind, stage), count = self._rows.get(backend, (("", ""), 0))
        if self._limit is None or count < self._limit:
            return None
        return (
            f"{backend}: {count} attempts in a row failed with {kind} ({stage}); the rest of it is given up, "
            "see stop_after_failures"
        )
