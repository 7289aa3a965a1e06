"""What a command prints of an object: a view for people, or JSON for programs.

In: an object, or a list of objects, whose class stands in `VIEWS`. Out: tables and lines on standard output, or JSON.
A new kind of object is a function that yields the parts of its view, and its entry in `VIEWS`.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

from wattdock.output import print_json

__all__ = ["show"]

# Class of an object, or of a list's items → file here and function that yields its view. By name, so that a command
# imports what it shows and nothing else.
VIEWS = {
    "AuditedRow": "tables.audited_view",
    "Check": "machine.check_view",
    "Comparison": "comparisons.comparison_view",
    "CreatedBundle": "tables.created_view",
    "Estimate": "plans.estimate_view",
    "ExperimentConfig": "plans.plan_view",
    "GpuSnapshot": "machine.gpus_view",
    "Ladder": "tables.ladders_view",
    "Row": "tables.rows_view",
    "Scaling": "comparisons.scaling_view",
    "StoredResult": "results.results_view",
    "Table": "tables.table_view",
    "TaskState": "tables.tasks_view",
    "VerifiedBundle": "tables.whole_view",
}


def show(value: Any, *, as_json: bool = False, **options: Any) -> None:
    """Print an object of a class in `VIEWS`, or a list; of an empty one only JSON. `options` are its view's."""
    if as_json:
        print_json(to_plain(value), default=str)
        return
    kinds = [type(item).__name__ for item in (value if isinstance(value, list | tuple) else [value])]
    if kinds:
        # Rich, which draws tables, takes a tenth of a second to import.
        from wattdock.console.views.terminal import print_view

        file, _, function = VIEWS[kinds[0]].partition(".")
        print_view(getattr(import_module(f"{__name__}.{file}"), function)(value, **options))


def to_plain(value: Any) -> Any:
    """Return any of our objects as JSON has it, under the names of its fields."""
    if hasattr(value, "to_pylist"):
        return value.to_pylist()
    if hasattr(value, "as_json"):
        return value.as_json()
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value) if field.repr}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, dict):
        return {key: to_plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple | set):
        return [to_plain(child) for child in value]
    return value.value if isinstance(value, Enum) else str(value) if isinstance(value, Path) else value
