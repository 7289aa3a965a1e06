"""What a person sees of a reproduction: verdicts first, then what else differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis import ENERGY
from wattdock.publish.print_bundle import plain
from wattdock.reports import Sheet, console, where_apart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wattdock.publish.reproduction import Comparison, FigureComparison

NOTHING = "not measured"
UNITS = {ENERGY: "J/token"}
COLUMNS = ("experiment", "figure", "bundle", "here", "difference", "90 % interval", "verdict")
RIGHT = ("bundle", "here", "difference", "90 % interval")
SHOWN = 12


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    """Print a row per figure, then reasons, token ids and differences."""
    out = console()
    rows = []
    for one in comparisons:
        for number, figure in enumerate(one.figures):
            name = one.label if not number else ""
            rows.append([plain(cell) for cell in (name, *_cells(figure))])
    out.print(Sheet(COLUMNS, rows, right=RIGHT))
    for one in comparisons:
        for line in (*_lines(one), *_differences(one)):
            out.print(plain(f"{one.label}: {line}"), markup=False, highlight=False, soft_wrap=True)
    if comparisons:
        out.print(f"equivalent: within ± {comparisons[0].margin:.3g} (ratio); {comparisons[0].method}", soft_wrap=True)


def _cells(figure: FigureComparison) -> tuple[str, ...]:
    between = "none" if figure.interval90 is None else " … ".join(f"{one:+.2%}" for one in figure.interval90)
    return (
        UNITS.get(figure.quantity, "tokens/s"),
        *(NOTHING if one is None else f"{one:.4g}" for one in (figure.before, figure.now)),
        "" if figure.relative is None else f"{figure.relative:+.2%}",
        between,
        "not compared" if figure.relative is None else figure.verdict,
    )


def _lines(one: Comparison) -> Iterator[str]:
    yield one.verdict + (f": {one.reason}" if one.reason else "")
    for figure in one.figures[1:]:
        if figure.quantity == ENERGY and figure.reason:
            yield figure.reason
    if tokens := one.tokens:
        said = tokens.reason or f"{tokens.equal} of {tokens.compared} requests gave equal token ids"
        yield f"token ids: {said}"


def _differences(one: Comparison) -> Iterator[str]:
    for each in one.differences[:SHOWN]:
        before, now = where_apart((each.before, each.now))
        yield f"{each.name}: {before} in the bundle, {now} here"
    if len(one.differences) > SHOWN:
        yield f"{len(one.differences) - SHOWN} further differences; --json has all"
    if one.reproduced and not one.differences:
        yield "no difference in hardware, driver, software, model or prompts"
