"""What was measured, worked out: records of restarts become one `ExperimentResult`, and results are compared.

In: an experiment's settings and the `RestartRecord` of each restart, together one `Measured`. Out: an
`ExperimentResult` without its audit (`analyse`); intervals, differences and names for results side by side.
Must not know: files, processes, GPUs of this machine, how anything is drawn. Each file holds one subject, its schema
beside the computation.
"""

from wattdock.analysis import conditions, statistics, windows
from wattdock.analysis.budget import Budget
from wattdock.analysis.result import ExperimentResult, StudyFacts, analyse
from wattdock.analysis.verdict import Audit, Check, Question

__all__ = [
    "Audit",
    "Budget",
    "Check",
    "ExperimentResult",
    "Question",
    "StudyFacts",
    "analyse",
    "conditions",
    "statistics",
    "windows",
]
