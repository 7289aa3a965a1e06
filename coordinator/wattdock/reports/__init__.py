"""What people read: a page, charts (defined once for page and paper), tables for papers, comparisons, scaling.

In: stored results. Out: a page (`write_report`), figures and tables for papers (`draw`), a `Comparison` with verdicts
(`compare`), a `Scaling` over GPU counts (`scale`). Three files are doors of their own: `charts`, for notebooks;
`cells`, values as text; `wording`, parts of a result in words.
A new chart is a function in `charts` with its entry in `CHARTS`.
Must not know: how results are measured, what a terminal shows, and what a command's arguments are.
"""

from wattdock.reports.boards import pools
from wattdock.reports.chart_data import point_cells, points_of
from wattdock.reports.comparison import Comparison, compare
from wattdock.reports.page import write_report
from wattdock.reports.paper import draw, markdown
from wattdock.reports.scaling import Scaling, scale

__all__ = [
    "Comparison",
    "Scaling",
    "compare",
    "draw",
    "markdown",
    "point_cells",
    "points_of",
    "pools",
    "scale",
    "write_report",
]
