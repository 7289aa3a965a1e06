"""What tests reach behind the door of `console`: a name that moves is changed here only."""

import re

from rich.console import Console

from wattdock.console import exits, main
from wattdock.console.bundles import _require_equivalent as require_equivalent
from wattdock.console.forms import Form
from wattdock.console.main import COMMANDS, EXTRAS, SUB_APPS, UsageError, app
from wattdock.console.options import SettingFlags, study_of
from wattdock.console.progress import JsonLines, Plain, describe
from wattdock.console.reports import Kind, Width
from wattdock.console.views.comparisons import comparison_view
from wattdock.console.views.results import results_view
from wattdock.console.views.tables import tasks_view, whole_view
from wattdock.console.views.terminal import Listing, pairs, print_view
from wattdock.store import StoredResult

__all__ = [
    "COMMANDS",
    "EXTRAS",
    "SUB_APPS",
    "Form",
    "JsonLines",
    "Kind",
    "Listing",
    "Plain",
    "SettingFlags",
    "UsageError",
    "Width",
    "app",
    "comparison_view",
    "describe",
    "exits",
    "main",
    "pairs",
    "print_view",
    "require_equivalent",
    "results_view",
    "study_of",
    "tasks_view",
    "terminal_rows",
    "whole_view",
]


def terminal_rows(stored: StoredResult) -> dict[str, str]:
    """Return what `show` prints of one result: each row's value by its name; rows without a name are joined."""
    out = Console(width=1000)
    with out.capture() as captured:
        for part in results_view([stored]):
            out.print(part)
    rows: dict[str, str] = {}
    for line in captured.get().splitlines():
        name, value = re.fullmatch(r"(\s{0,2}\S.*?|)\s{2,}(.*)", line.rstrip() + "  ").groups()  # type: ignore[union-attr]
        rows[name.strip()] = f"{rows.get(name.strip(), '')} {value}".strip()
    return rows
