"""reports."""

from wattdock.reports.agreement import agreement, answers
from wattdock.reports.cards import show_card
from wattdock.reports.checks import print_checks
from wattdock.reports.comparison_table import print_comparison, print_comparison_json
from wattdock.reports.estimate import print_estimate, print_known
from wattdock.reports.figures import draw
from wattdock.reports.html.page import write_page
from wattdock.reports.images import print_images
from wattdock.reports.listing import SHOWN, print_results, print_rows, print_rows_json
from wattdock.reports.pairs import compare
from wattdock.reports.paper_table import write_table
from wattdock.reports.plan_table import print_plan
from wattdock.reports.points import points
from wattdock.reports.regression import Outcome, judge
from wattdock.reports.scaling import print_scaling
from wattdock.reports.scaling_plot import draw_scaling
from wattdock.reports.scaling_points import settings
from wattdock.reports.table import print_result, print_stored
from wattdock.reports.terminal import Sheet, console
from wattdock.reports.watch import show_gpus
from wattdock.reports.windows import print_windows
from wattdock.reports.words import where_apart

__all__ = [
    "SHOWN",
    "Outcome",
    "Sheet",
    "agreement",
    "answers",
    "compare",
    "console",
    "draw",
    "draw_scaling",
    "judge",
    "points",
    "print_checks",
    "print_comparison",
    "print_comparison_json",
    "print_estimate",
    "print_images",
    "print_known",
    "print_plan",
    "print_result",
    "print_results",
    "print_rows",
    "print_rows_json",
    "print_scaling",
    "print_stored",
    "print_windows",
    "settings",
    "show_card",
    "show_gpus",
    "where_apart",
    "write_page",
    "write_table",
]
