"""What a command line offers is what there is: its lists stand apart, so that `--help` loads nothing heavy."""

from __future__ import annotations

from typing import get_args

from wattdock.analysis import ExperimentResult
from wattdock.analysis.windows import WINDOWS
from wattdock.cli.reports import Kind, Width
from wattdock.cli.results import Status, Window
from wattdock.reports.charts import CHARTS
from wattdock.reports.paper import WIDTHS


def test_every_choice_is_offered() -> None:
    """A status, a window, a chart or a width that is missing there could not be asked for."""
    assert get_args(Status) == get_args(ExperimentResult.model_fields["status"].annotation)
    assert get_args(Window) == (*WINDOWS, "all")
    assert {*CHARTS, "table"} == set(get_args(Kind))
    assert set(WIDTHS) == set(get_args(Width))
