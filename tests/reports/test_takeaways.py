"""What a chart says in a sentence."""

from __future__ import annotations

import pytest
from report_rows import row

from wattdock.reports.chart_data import points_of
from wattdock.reports.charts import CHARTS
from wattdock.reports.takeaways import TAKEAWAYS


def test_every_chart_of_several_results_has_one() -> None:
    """A timeline is of one result."""
    assert set(TAKEAWAYS) == set(CHARTS) - {"timeline"}


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("intervals", "a costs least, 1 J/output token; c costs 3 times as much."),
        ("batch", "From 1 to 8 requests in flight, joules per output token change by -67%."),
        ("scaling", ""),
        ("limits", ""),
    ],
)
def test_it_names_the_ends_of_what_is_drawn(key: str, sentence: str) -> None:
    """And nothing where there is nothing to compare."""
    rows = [
        row(name, {"config.name": name, "config.workload.batch_size": batch}, restarts=[joules] * 3)
        for name, batch, joules in (("c", 1, 3.0), ("b", 4, 2.0), ("a", 8, 1.0))
    ]
    assert TAKEAWAYS[key](points_of(rows)) == sentence
    assert TAKEAWAYS[key](points_of(rows[:1])) == ""
