"""What people read: charts (defined once for page and paper), tables, comparisons, scaling; the terminal's output.

In: stored results, and what other rooms found out (checks, images, GPUs, estimates). Out: a page (`write_report`),
figures and tables for papers (`draw`), a `Comparison` with verdicts (`compare`), a `Scaling` over GPU counts, text and
JSON of any of them on standard output.
Must not know: how results are measured, and what a command's arguments are.
"""

from wattdock.reports.agreement import agreement, answers
from wattdock.reports.cards import show_card
from wattdock.reports.checks import print_checks
from wattdock.reports.comparison import Verdict, compare, comparison_view
from wattdock.reports.estimate import print_estimate, print_known
from wattdock.reports.images import print_images
from wattdock.reports.listing import SHOWN, print_results, print_rows, print_rows_json
from wattdock.reports.page import write_report
from wattdock.reports.paper import draw
from wattdock.reports.plan_table import print_plan
from wattdock.reports.scaling import scaling, scaling_view
from wattdock.reports.table import print_result, print_stored
from wattdock.reports.terminal import Sheet, console, show, show_json, where_apart
from wattdock.reports.watch import show_gpus
from wattdock.reports.windows import print_windows

__all__ = [
    "SHOWN",
    "Sheet",
    "Verdict",
    "agreement",
    "answers",
    "compare",
    "comparison_view",
    "console",
    "draw",
    "print_checks",
    "print_estimate",
    "print_images",
    "print_known",
    "print_plan",
    "print_result",
    "print_results",
    "print_rows",
    "print_rows_json",
    "print_stored",
    "print_windows",
    "scaling",
    "scaling_view",
    "show",
    "show_card",
    "show_gpus",
    "show_json",
    "where_apart",
    "write_report",
]
