"""Results as a table for a paper: Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError, StoreError
from wattdock.reports.words import NOTHING, interval_text, number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from wattdock.reports.points import Point
    from wattdock.reports.words import Figure

HEADINGS = ("experiment", "backend", "model", "GPUs", "batch", "J/output token", "output tokens/s", "publishable")
NUMBERS = {"GPUs", "batch", "J/output token", "output tokens/s"}
COLUMNS = (
    *("experiment", "backend", "model", "gpu_count", "batch_size", "energy_per_output_token_j"),
    *("energy_per_output_token_j_low", "energy_per_output_token_j_high", "interval_covers"),
    *("output_tokens_per_s", "output_tokens_per_s_low", "output_tokens_per_s_high", "publishable", "reason", "folder"),
    "fallback",
)
NOTE = "± is half of the 95 % interval: over restarts, or (marked *) of timing alone. Energy of GPU boards."
FALLBACK_NOTE = "A fallback was measured because what was asked for failed, and does not stand for it."
# What LaTeX would take for a command of its own.
ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "×": r"$\times$",
    "±": r"$\pm$",
    "–": "--",
}


def write_table(points: Sequence[Point], file: Path) -> None:
    """Write the table in the form that the file's name asks for; replaces what is there.

    Raises:
        ConfigError: The form is unknown.
        StoreError: The file cannot be written.
    """
    if file.suffix not in FORMS:
        raise ConfigError(f"{file}: tables are written as {', '.join(FORMS)}; name such a file with -o")
    try:
        file.write_text(FORMS[file.suffix](points), encoding="utf-8", newline="")
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}; choose another file with -o") from error


def markdown(points: Sequence[Point]) -> str:
    """Return a pipe table."""
    rule = ["---:" if name in NUMBERS else "---" for name in HEADINGS]
    rows = [HEADINGS, rule, *([_one_line(cell).replace("|", r"\|") for cell in _cells(one)] for one in points)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + f"\n{_note(points)}\n"


def latex(points: Sequence[Point]) -> str:
    """Return a tabular with booktabs' rules."""
    kinds = "".join("r" if name in NUMBERS else "l" for name in HEADINGS)
    rows = [" & ".join(_tex(cell) for cell in _cells(one)) + r" \\" for one in points]
    head = " & ".join(_tex(name) for name in HEADINGS) + r" \\"
    begin = [f"% {_note(points)}", rf"\begin{{tabular}}{{{kinds}}}"]
    return "\n".join([*begin, r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""])


def comma_separated(points: Sequence[Point]) -> str:
    """Return plain figures, with units in the columns' names; what was not measured is empty."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for one in points:
        cost, speed = one.j_per_token, one.tokens_per_s
        own = (one.label, one.backend, one.model, one.gpu_count, one.batch_size)
        figures = (*_ends(cost), cost.covers if cost else None, *_ends(speed))
        judged = one.result.audit.reasons if one.result.audit else []
        about = (one.publishable, one.reason or "; ".join(judged), one.row.folder.name)
        writer.writerow([*own, *figures, *about, one.result.fallback.change if one.result.fallback else None])
    return out.getvalue()


FORMS: Mapping[str, Callable[[Sequence[Point]], str]] = {".md": markdown, ".csv": comma_separated, ".tex": latex}


def _cells(one: Point) -> list[str]:
    verdict = NOTHING if one.publishable is None else "yes" if one.publishable else "no"
    verdict += f" (fallback: {one.result.fallback.change})" if one.result.fallback else ""
    own = [one.label, one.backend, one.model, str(one.gpu_count), str(one.batch_size)]
    return [*own, _plus_minus(one.j_per_token, ".4g"), _plus_minus(one.tokens_per_s, ",.1f"), verdict]


def _note(points: Sequence[Point]) -> str:
    return f"{NOTE} {FALLBACK_NOTE}" if any(one.result.fallback for one in points) else NOTE


def _plus_minus(figure: Figure | None, form: str) -> str:
    if figure is None or figure.low is None or figure.high is None:
        return number(figure.value if figure else None, form)
    return interval_text(figure.value, (figure.low, figure.high), form) + ("*" if figure.covers == "timing" else "")


def _ends(figure: Figure | None) -> list[float | None]:
    return [figure.value, figure.low, figure.high] if figure else [None, None, None]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _tex(text: str) -> str:
    return "".join(ESCAPED.get(sign, sign) for sign in _one_line(text))
