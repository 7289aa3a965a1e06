"""Keep the command from what its start would pay for and never use.

Only for a process of the command's own: it changes how all of the process imports.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

# Of new objects, before garbage is looked for; Python's 700 has it look some hundred times at what imports make.
OBJECTS_BETWEEN_LOOKS = 50_000


class _PandasForZeus:
    """A finder, asked before all others, to which pandas is not there until Zeus is imported, which needs it."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:  # noqa: ARG004
        """Leave every other name to the finders behind.

        Raises:
            ModuleNotFoundError: It is pandas.
        """
        if name == "pandas" and "zeus" not in sys.modules:
            raise ModuleNotFoundError("pandas is left to Zeus", name=name)


def keep_pandas_for_zeus() -> None:
    """Spare pyarrow pandas, which it tries to import at its first array, to know its types.

    That takes longer than all else that is imported where a result is stored, and where Zeus is not installed there
    is no pandas at all.
    """
    if _PandasForZeus not in sys.meta_path:
        sys.meta_path.insert(0, _PandasForZeus)


def look_for_garbage_less() -> None:
    """Have Python's collector go through the process less often: while modules are imported, and beside a meter."""
    gc.set_threshold(OBJECTS_BETWEEN_LOOKS)


def leave_garbage() -> None:
    """Spare the collector what is there now, so that an end does not go through all of it: the system takes it back."""
    gc.freeze()
