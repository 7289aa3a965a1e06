"""wattdock: what LLM inference costs in energy, measured well enough to publish.

In Python and notebooks: `run` measures, `results` is the table of what is stored, `load` opens stored results. What is
behind them is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.errors import WattdockError
from wattdock.version import __version__

if TYPE_CHECKING:
    from wattdock.api import Result, Results, load, results, run
else:

    def __getattr__(name: str) -> object:
        """Import a name of the Python interface on its first use."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from wattdock import api

        return getattr(api, name)


__all__ = ["Result", "Results", "WattdockError", "__version__", "load", "results", "run"]
