"""What tests reach behind the door of `reports`: a name that moves is changed here only."""

from wattdock.reports import paper
from wattdock.reports.boards import Pool
from wattdock.reports.cells import plus_minus
from wattdock.reports.chart_data import Trace, pareto_front, thin, timelines
from wattdock.reports.comparison import PRIMARY, Regression, is_equivalent
from wattdock.reports.page import page
from wattdock.reports.paper import WIDTHS, comma_separated, latex, markdown
from wattdock.reports.scaling import Setting, SplitPoint, optimum

__all__ = [
    "PRIMARY",
    "WIDTHS",
    "Pool",
    "Regression",
    "Setting",
    "SplitPoint",
    "Trace",
    "comma_separated",
    "is_equivalent",
    "latex",
    "markdown",
    "optimum",
    "page",
    "paper",
    "pareto_front",
    "plus_minus",
    "thin",
    "timelines",
]
