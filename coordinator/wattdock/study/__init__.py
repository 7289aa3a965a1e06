"""A study on disk: its folder, its journal, the records of its restarts; found by name, gone on with, watched.

In: a `Study` and a folder for results. Out: a `StudyFolder`, which survives any end of a run; typed `events`, and their
log; the `EarlierStudy` that `--resume` means; `RunWatch` shows the runs of other processes, each as a `RunState`. The
tasks of a study on a cluster have a door of their own, `wattdock.study.tasks`.
Must not know: runners, meters, how experiments are measured, terminals.
"""

from wattdock.study import events
from wattdock.study.find import EarlierStudy, find_study, study_to_resume
from wattdock.study.folder import SavedRestart, StudyFolder
from wattdock.study.open import open_study
from wattdock.study.run_state import RunState
from wattdock.study.watch import RunWatch, WatchedRun

__all__ = [
    "EarlierStudy",
    "RunState",
    "RunWatch",
    "SavedRestart",
    "StudyFolder",
    "WatchedRun",
    "events",
    "find_study",
    "open_study",
    "study_to_resume",
]
