"""What others ask of a figure: joules carried on to the wall, to money and carbon, and the forms that others publish.

In: a stored result, factors that a person names, a file of a server's watts (`HostReadings`). Out: the `Rung`s of the
ladder (`ladder`), a text in a form (`form_text`), or a run in an experiment tracker (`tracker`). Each rung says whether
it was measured, and by which factors it was not.
A new form is a module with `written()`, and its name with the ending of its files in `forms.FORMS`.
Must not know: how results are measured, and what a command's arguments are.
"""

from wattdock.forms.forms import FORMS, form_text
from wattdock.forms.host_readings import HostReadings
from wattdock.forms.rungs import Factor, Factors, Ladder, Rung, ladder
from wattdock.forms.trackers import tracker

__all__ = ["FORMS", "Factor", "Factors", "HostReadings", "Ladder", "Rung", "form_text", "ladder", "tracker"]
