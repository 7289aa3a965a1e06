"""Comparisons for a terminal: of two sets of results, and over numbers of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis import conditions, statistics
from wattdock.console.views.terminal import SENTENCES, Listing
from wattdock.reports.cells import NOTHING, figure_text, marked, number, seconds_text
from wattdock.reports.wording import quantity_text
from wattdock.store import COLUMNS
from wattdock.text import excerpts_at_difference, pluralize

if TYPE_CHECKING:
    from wattdock.console.views.terminal import View
    from wattdock.reports import Comparison, Scaling

# Columns of a pair; a narrow terminal leaves out the last ones.
PAIR_COLUMNS = ("experiment", SENTENCES, "B / A − 1", "95 % interval", "A", "B", "p (Holm)", "test", "restarts")
MOST_DIFFERENCES = 40
# Unit of engines' work; other work has no latencies.
TOKENS = "output tokens"
POWER, TTFT, TPOT = (COLUMNS[name].heading for name in (statistics.POWER, "ttft_p50_s", "tpot_p50_s"))


def comparison_view(compared: Comparison) -> View:
    """Yield the pairs, what else differs, results without a partner, and the verdict on a regression."""
    if all(pair.a == pair.b for pair in compared.pairs):
        yield "A and B are the same results"
    yield from (f"{pair.label}: {pair.unmeasured}" for pair in compared.pairs if pair.unmeasured)
    if compared.measured:
        yield from _measured_view(compared)
    for side, names in (("A", compared.only_in_a), ("B", compared.only_in_b)):
        yield from (f"only in {side}: {name}" for name in names)
    if compared.older_left_out:
        yield f"{pluralize(compared.older_left_out, 'older result')} of the same experiments left out"
    yield from compared.equivalence_lines
    yield from compared.quality_lines
    if compared.regression:
        yield f"allowed regression of {compared.regression.allowed:.3g}: {compared.regression.verdict}"
        yield from (f"  {line}" for line in compared.regression.lines)


def _measured_view(compared: Comparison) -> View:
    """Yield the pairs with a pass on both sides, and what else differs in these."""
    pairs = compared.measured
    for quantity in (statistics.ENERGY, statistics.SPEED):
        rows = []
        for pair in pairs:
            test = pair.tests[quantity]
            verdict = {True: "differs", False: "not shown to differ", None: test.reason or ""}[test.differs]
            interval = format(test.difference.interval, "+.2%") if test.difference else NOTHING
            figures = (number(test.a), number(test.b), number(test.p_holm, ".3g"))
            restarts = f"{test.restarts[0]}, {test.restarts[1]}"
            method = test.method or NOTHING
            rows.append((pair.label, verdict, number(test.relative, "+.2%"), interval, *figures, method, restarts))
        if any(pair.tests[quantity].relative is not None for pair in pairs):
            yield Listing(PAIR_COLUMNS, rows, quantity_text(quantity, compared.unit))
            yield ""
    if all(pair.tests[statistics.ENERGY].relative is None for pair in pairs):
        yield f"joules: {pairs[0].tests[statistics.ENERGY].reason}"
    yield compared.method
    if compared.untested:
        yield compared.untested
    yield from compared.over_boards
    yield from (f"disturbed by others: {line}" for line in compared.disturbed)
    # Except for engine arguments and packages that only one side has.
    if not compared.differs_in:
        yield "nothing else that was recorded differs"
        return
    others = [
        (each.name, *excerpts_at_difference((each.a, each.b)), f"{each.pairs} of {len(pairs)}")
        for each in compared.differs_in
        if conditions.ABSENT not in (each.a, each.b)
        or not each.name.startswith((conditions.ENGINE, conditions.PACKAGE))
    ][:MOST_DIFFERENCES]
    yield Listing(("", "A", "B", "pairs"), others, "What else differs")
    if more := len(compared.differs_in) - len(others):
        yield f"and {more} more, most of them engine arguments and packages; --json has them all"


def scaling_view(scaling: Scaling) -> View:
    """Yield every setting's curves and cheapest split."""
    for setting in scaling.settings:
        is_engine = setting.unit == TOKENS
        rows = [
            (
                *(point.kind, marked(point.split, point.disturbed), str(point.gpus)),
                str(point.restarts),
                *(figure_text(point.j_per_token), figure_text(point.energy_ratio, ".3f")),
                figure_text(point.tokens_per_s, ",.0f" if is_engine else ",.4g"),
                *(figure_text(ratio, ".3f") for ratio in (point.speed_up, point.efficiency)),
                *((seconds_text(point.ttft_p50_s), seconds_text(point.tpot_p50_s)) if is_engine else ()),
                *(figure_text(point.power_w, ",.0f"), number(point.load_imbalance, ".3f")),
                *(() if is_engine else (number(point.communication, ".0%"),)),
            )
            for point in setting.points
        ]
        speed, energy = (quantity_text(name, setting.unit) for name in (statistics.SPEED, statistics.ENERGY))
        # A narrow terminal has room for the first only.
        columns = ("kind", "split", "GPUs", "restarts", energy, f"{energy} ÷ first", speed, "speed-up", "efficiency")
        yield setting.name
        latency, last = ((TTFT, TPOT), ()) if is_engine else ((), ("communication",))
        yield Listing((*columns, *latency, POWER, "imbalance", *last), rows)
        yield f"fewest joules: {setting.fewest_joules or 'unknown, energy was not measured'}"
        yield from setting.serial_shares
        yield ""
    yield from (f"{name}: {reason}; left out" for name, reason in scaling.left_out.items())
    yield scaling.method
