"""What tests reach behind the door of `reports`: a name that moves is changed here only."""

from wattdock.reports import paper
from wattdock.reports.boards import Pool, over_boards
from wattdock.reports.cells import figure_text
from wattdock.reports.chart_data import Trace, pareto_front, thin, timelines
from wattdock.reports.labels import labels
from wattdock.reports.page import page
from wattdock.reports.pairs import PRIMARY, Test, equivalence_interval, is_equivalent
from wattdock.reports.paper import WIDTHS, latex, markdown
from wattdock.reports.regression import Regression
from wattdock.reports.scaling import Optimum, Setting, SplitPoint, optimum
from wattdock.reports.sessions import Sessions, by_session, declared_difference, outcome, sessions_among
from wattdock.reports.wording import work_text

__all__ = [
    "PRIMARY",
    "WIDTHS",
    "Optimum",
    "Pool",
    "Regression",
    "Sessions",
    "Setting",
    "SplitPoint",
    "Test",
    "Trace",
    "by_session",
    "declared_difference",
    "equivalence_interval",
    "figure_text",
    "is_equivalent",
    "labels",
    "latex",
    "markdown",
    "optimum",
    "outcome",
    "over_boards",
    "page",
    "paper",
    "pareto_front",
    "sessions_among",
    "thin",
    "timelines",
    "work_text",
]
