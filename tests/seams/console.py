"""What tests reach behind the door of `console`: a name that moves is changed here only."""

from wattdock.console import exits, main
from wattdock.console.main import COMMANDS, EXTRAS, SUB_APPS, UsageError, app
from wattdock.console.options import SettingFlags, study_of
from wattdock.console.progress import JsonLines, Notebook, Plain, describe
from wattdock.console.reports import Width
from wattdock.console.results import Window
from wattdock.console.views.bundles import bundle_view
from wattdock.console.views.comparisons import comparison_view
from wattdock.console.views.results import results_view
from wattdock.console.views.tables import tasks_view
from wattdock.console.views.terminal import Listing, Sheet, pairs, print_view

__all__ = [
    "COMMANDS",
    "EXTRAS",
    "SUB_APPS",
    "JsonLines",
    "Listing",
    "Notebook",
    "Plain",
    "SettingFlags",
    "Sheet",
    "UsageError",
    "Width",
    "Window",
    "app",
    "bundle_view",
    "comparison_view",
    "describe",
    "exits",
    "main",
    "pairs",
    "print_view",
    "results_view",
    "study_of",
    "tasks_view",
]
