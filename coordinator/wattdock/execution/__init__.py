"""Measure a whole study: plan, sessions (launch, load, idle, warm-up, passes), records, results.

In: a `Study` and a folder for results. Out: stored results in `StudyRun.results`, and typed events while it runs, which
a `RunState` adds up; a journal and records that survive any end, from which a study is resumed. `RunWatch` shows runs
of other processes. Read `StudyRun._measure` (restarts and load
groups), `Session._serve` (one runner) and `MeasuringProcedure.measure` (one experiment on it) first.
Must not know: terminals, reports, how energy is computed.
"""

from wattdock.execution import events
from wattdock.execution.begun import find_study, unfinished_study
from wattdock.execution.event_log import RunWatch, WatchedRun
from wattdock.execution.run_state import RunState
from wattdock.execution.schedule import Forecast, forecast
from wattdock.execution.study_run import StudyRun, plan_study

__all__ = [
    "Forecast",
    "RunState",
    "RunWatch",
    "StudyRun",
    "WatchedRun",
    "events",
    "find_study",
    "forecast",
    "plan_study",
    "unfinished_study",
]
