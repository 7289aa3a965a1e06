"""The forms by name, and how one of them is written."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError
from wattdock.forms.facts import Facts

if TYPE_CHECKING:
    from wattdock.analysis import ExperimentResult
    from wattdock.forms.rungs import Ladder

# Each is written by `written()` of the file here of that name; how names of its files end.
FORMS = dict.fromkeys(("boamps", "ml-energy"), ".json")
FORMS |= dict.fromkeys(("ai-energy-score", "model-card", "annex-xi"), ".md")
OF_REQUESTS = ("ml-energy", "ai-energy-score")


def form_text(kind: str, result: ExperimentResult, rungs: Ladder) -> str:
    """Return a result in one of `FORMS`; figures as they are stored, unrounded where the form is for programs.

    Raises:
        ConfigError: The result lacks what the form asks for, or a command's has no requests.
    """
    if kind in OF_REQUESTS and result.config.command is not None:
        others = ", ".join(form for form in FORMS if form not in OF_REQUESTS)
        raise ConfigError(f"{rungs.label}: {kind} takes results with requests, a command has none", f"take {others}")
    written: str = import_module(f"wattdock.forms.{kind.replace('-', '_')}").written(Facts.of(result, rungs))
    return written
