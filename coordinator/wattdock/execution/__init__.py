"""Measure a whole study: plan, sessions (launch, load, idle, warm-up, passes), records, results.

In: a `Study` and a folder for results. Out: stored results in `StudyRun.results`, and typed events while it runs; a
journal and records that survive any end, from which a study is resumed. Read `StudyRun._measure` (restarts and load
groups), `Session._serve` (one runner) and `MeasuringProcedure.measure` (one experiment on it) first.
Must not know: terminals, reports, how energy is computed.
"""

from wattdock.execution import events
from wattdock.execution.resume import BegunStudy, find_study, unfinished_study
from wattdock.execution.schedule import Forecast, forecast
from wattdock.execution.session import RunDependencies
from wattdock.execution.study_run import StudyRun, plan_study

__all__ = [
    "BegunStudy",
    "Forecast",
    "RunDependencies",
    "StudyRun",
    "events",
    "find_study",
    "forecast",
    "plan_study",
    "unfinished_study",
]
