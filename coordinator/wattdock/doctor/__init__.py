"""Whether this machine is sound, as far as that can be known before a measurement; calibration of its energy counters.

In: this machine, and an experiment's settings. Out: `Check`s with figure, limit, source and remedy; a card of each
counter. A check is a function in a `Checklist` of `machine` or `gpus`.
Must not know: how experiments are run, how anything is printed.
"""

from wattdock.doctor.calibrate import calibrate_meters
from wattdock.doctor.examine import examine

__all__ = ["calibrate_meters", "examine"]
