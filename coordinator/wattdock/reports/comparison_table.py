"""A comparison of two sets of results, for a terminal or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock.analysis import ABSENT, ENGINE, PACKAGE, TEST
from wattdock.reports.pairs import PRIMARY, QUANTITIES
from wattdock.reports.terminal import Sheet, console
from wattdock.reports.words import NOTHING, number, where_apart
from wattdock.text import print_json

if TYPE_CHECKING:
    from wattdock.reports.pairs import Comparison, Pair, Test
    from wattdock.reports.regression import Gate

HEADINGS = {"energy_per_output_token_j": "J per output token", "output_tokens_per_s": "output tokens/s"}
UNDER = (
    f"A and B are geometric means over restarts. {TEST} (one value per restart), 95 % intervals of B / A − 1; "
    "p adjusted for the number of pairs (Holm), differs: p < 0.05. Intervals are each pair's own. They speak for "
    "repetitions on these machines and days, not for other GPUs, prompts, nor the sensors' gain."
)
MOST_APART = 40
COLUMNS = ("experiment", "A", "B", "restarts", "B / A − 1", "95 % interval", "p (Holm)", "")


def print_comparison(compared: Comparison, gate: Gate | None) -> None:
    """Print the pairs, what else differs, what has no partner, and the verdict on a regression where one was asked."""
    out = console()
    for quantity in QUANTITIES:
        if any(pair.tests[quantity].relative is not None for pair in compared.pairs):
            out.print(_table(compared, quantity))
            out.print()
    if all(pair.tests[PRIMARY].relative is None for pair in compared.pairs):
        out.print(f"joules: {compared.pairs[0].tests[PRIMARY].reason}", markup=False)
    out.print(UNDER, style="dim", markup=False)
    _print_apart(compared)
    for side, names in (("A", compared.only_first), ("B", compared.only_second)):
        for name in names:
            out.print(f"only in {side}: {name}", markup=False)
    if compared.repeated:
        out.print(f"{compared.repeated} older rows of the same experiments left out; the latest finished one stands")
    if gate:
        out.print(f"allowed regression: {gate.outcome.value}", style="bold")
        for line in gate.lines:
            out.print(f"  {line}", markup=False)


def print_comparison_json(compared: Comparison, gate: Gate | None) -> None:
    """Print the same as one JSON object; differences are relative, 0.03 is 3 %."""
    document = {
        "test": TEST,
        "means": "geometric, over restarts",
        "adjustment": "Holm, over the pairs of each quantity",
        "pairs": [_pair_document(pair) for pair in compared.pairs],
        "differs_in": [
            {"name": one.name, "a": one.first, "b": one.second, "pairs": one.pairs} for one in compared.apart
        ],
        "only_in_a": compared.only_first,
        "only_in_b": compared.only_second,
        "older_rows_left_out": compared.repeated,
        "regression": {"outcome": gate.outcome.value, "lines": gate.lines} if gate else None,
    }
    print_json(document)


def _table(compared: Comparison, quantity: str) -> Sheet:
    rows = [_row(pair, pair.tests[quantity]) for pair in compared.pairs]
    return Sheet(COLUMNS, rows, right=COLUMNS[1:-1], title=HEADINGS[quantity])


def _row(pair: Pair, test: Test) -> list[str]:
    found = test.difference
    said = {True: "differs", False: "not shown to differ", None: test.reason or ""}[test.differs]
    return [
        pair.label,
        number(test.first),
        number(test.second),
        f"{test.restarts[0]}, {test.restarts[1]}",
        number(test.relative, "+.2%"),
        f"{found.low:+.2%} … {found.high:+.2%}" if found else NOTHING,
        number(test.p_holm, ".3g"),
        said,
    ]


def _print_apart(compared: Comparison) -> None:
    out = console()
    if not compared.apart:
        out.print("nothing else that was recorded differs")
        return
    # What only one of two backends has says no more than that they are two.
    shown = [
        one
        for one in compared.apart
        if not one.name.startswith((ENGINE, PACKAGE)) or ABSENT not in (one.first, one.second)
    ]
    many = len(compared.pairs)
    rows = [(one.name, *where_apart((one.first, one.second)), f"{one.pairs} of {many}") for one in shown[:MOST_APART]]
    out.print(Sheet(("", "A", "B", "pairs"), rows, right=("pairs",), title="What else differs"))
    if more := len(compared.apart) - len(shown[:MOST_APART]):
        out.print(f"and {more} more, most of them engine arguments and packages; --json has them all", style="dim")


def _pair_document(pair: Pair) -> dict[str, Any]:
    return {
        "label": pair.label,
        "matched_by": pair.match.by,
        "a": str(pair.match.first.folder),
        "b": str(pair.match.second.folder),
        "tests": [_test_document(test) for test in pair.tests.values()],
    }


def _test_document(test: Test) -> dict[str, Any]:
    found = test.difference
    return {
        "quantity": test.quantity,
        "a": test.first,
        "b": test.second,
        "restarts": test.restarts,
        "relative": test.relative,
        "ci95": [found.low, found.high] if found else None,
        "p_value": found.p_value if found else None,
        "p_holm": test.p_holm,
        "differs": test.differs,
        "reason": test.reason,
    }
