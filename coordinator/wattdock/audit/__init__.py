"""Whether a measurement was sound and may be published. Pure.

In: an `ExperimentResult` with what was measured. Out: the result with its `Audit`: checks with status, figure, limit,
source and remedy, and one verdict. A check is a function in a `check.Checklist` of `audit` (what was measured),
`procedure` or `gpus`.
Must not know: files, this machine, how experiments are run, how anything is printed.
"""

from wattdock.audit.audit import OTHERS_SHARE, audit, audited
from wattdock.audit.check import Checklist, Outcome, Status, verdict
from wattdock.audit.publication import left_to_do

__all__ = ["OTHERS_SHARE", "Checklist", "Outcome", "Status", "audit", "audited", "left_to_do", "verdict"]
