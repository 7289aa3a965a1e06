"""What people read: charts (defined once for page and paper), tables, comparisons, scaling; the terminal's output.

In: stored results, and objects of other rooms (checks, images, GPUs, plans, estimates). Out: a page
(`write_report`), figures and tables for papers (`draw`), a `Comparison` with verdicts (`compare`), a `Scaling` over GPU
counts; `show` prints any of them and those objects, for people or as JSON of the same object.
Charts themselves, for notebooks, have a door of their own, `wattdock.reports.charts`.
A new chart is a function in `charts` with its entry in `CHARTS`, and its name in `console.reports.Kind`.
Must not know: how results are measured, and what a command's arguments are.
"""

from wattdock.reports.comparison import Comparison, compare
from wattdock.reports.gpu_view import GpuView
from wattdock.reports.page import write_report
from wattdock.reports.paper import draw
from wattdock.reports.plan_view import KnownHardware, Plan
from wattdock.reports.scaling import scale
from wattdock.reports.views import CheckList, show

__all__ = [
    "CheckList",
    "Comparison",
    "GpuView",
    "KnownHardware",
    "Plan",
    "compare",
    "draw",
    "scale",
    "show",
    "write_report",
]
