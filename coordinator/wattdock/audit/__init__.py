"""Whether a measurement was sound and may be published. Pure.

In: an `ExperimentResult` with what was measured. Out: the result with its `Audit`: checks with status, figure, limit,
source and remedy, and one verdict on three questions. A check is a function in a `check.Checklist`: of `repeatable`
(can it be repeated), of `alone`, `gpus` or `work` (was anything wrong), or of `known` (is it known well enough).
Must not know: files, this machine, how experiments are run, how anything is printed.
"""

from wattdock.audit.alone import OTHERS_SHARE
from wattdock.audit.audit import audit, audited
from wattdock.audit.check import Checklist, Outcome, Status, verdict
from wattdock.audit.publication import left_to_do

__all__ = ["OTHERS_SHARE", "Checklist", "Outcome", "Status", "audit", "audited", "left_to_do", "verdict"]
