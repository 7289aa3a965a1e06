"""Whether this machine is sound, as far as that can be known before a measurement.

In: this machine, and an experiment's settings. Out: `Check`s with figure, limit, source and remedy.
Must not know: how experiments are run, how anything is printed.
"""

from wattdock.doctor.examine import examine

__all__ = ["examine"]
