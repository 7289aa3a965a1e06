"""Find the backend that a name stands for, by importing its module; imports no engine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from wattdock_runner.backend import Backend


def find_backend(name: str) -> Backend:
    """Return the backend in module `wattdock_<name>`: its `BACKEND`, else an instance of its one backend class.

    Raises:
        LookupError: There is no such module, or not exactly one backend in it.
    """
    module_name = f"wattdock_{name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise LookupError(f"no backend {name!r}: module {module_name} is not on PYTHONPATH") from error
    if hasattr(module, "BACKEND"):
        return cast("Backend", module.BACKEND)
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module_name]
    classes = [value for value in own if hasattr(value, "engine_arguments")]
    if len(classes) != 1:
        raise LookupError(f"{module_name} must hold one backend class or BACKEND, and holds {len(classes)}")
    return cast("Backend", classes[0]())
