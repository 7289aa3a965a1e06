"""All figures of a benchmark run so far, and their Markdown; pure except for the date."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import mean, median
from typing import TYPE_CHECKING

from wattdock.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from comparison import Comparison
    from metered import MeterCost
    from overheads import Row
    from paired import Claim

HOW_TO_READ = """\
Both arms run on one live engine in one process. Every block has the same number of passes and requests, on prompts of
its own; a pass begins and ends on a drained engine. The passes of four blocks alternate (ABBA; in every other quadruple
BAAB), so that only changes faster than a turn blur a ratio, and each arm follows itself as often as the other arm. Each
quadruple of blocks gives one value: the logarithm of the ratio of rates, from the sum of each arm's times, so that a
pause counts for as long as it lasts. Pauses rarer than a run are not covered. The first quadruple is a warm-up and does
not count. The bound is one-sided, 95 %, by Student's t over the quadruples' values. *Margin* is the smallest cost that
the values can resolve. `holds`: the lower bound reaches the limit, where a ratio above 1 counts as 1, since nothing in
the first arm makes an engine faster. `fails`: the upper bound is below the limit. `unresolved`: neither, which is no
pass. A lower bound above 1 is unresolved, too: the arms differ in something else, which may hide a cost. *Carry-over*
is the cost of a pass of the first arm to the pass after it; alternation spreads this cost over both arms, so it is in
neither the ratio nor the verdict.

*Runner* is the coordinator's client, the wire, the servicer, the backend's loop and the recorder. *Bare loop* is the
engine alone, without records. Not distinguished: the runner's idle threads and one heartbeat a second, which both arms
have, and work outside the span (sending prompts, tokenising, fetching the record)."""

HEAD = ("ratio", "n", "estimate", "lower bound", "limit", "margin", "verdict")


@dataclass
class Figures:
    """The figures measured so far.

    Attributes:
        command: As it was typed.
        revision: The commit of the sources.
        machine: Without its name.
        meter: What the meter reads, and the cost of its threads.
        comparisons: By name.
        notes: What was not measured, and why.
    """

    command: str
    revision: str
    machine: str
    rows: list[Row] = field(default_factory=list)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    meter: tuple[str, MeterCost] | None = None
    notes: list[str] = field(default_factory=list)
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))

    def document(self) -> str:
        """Return all of it as Markdown."""
        parts = [
            f"# What wattdock {__version__} itself costs",
            f"`{self.command}` at revision {self.revision} on {self.begun:%Y-%m-%d}: {self.machine}.",
        ]
        if self.rows:
            parts.append(table(("what", "median", "range", "aim"), self.rows))
        if self.comparisons:
            done = list(self.comparisons.values())
            rows = [ratio_row(claim) for comparison in done for claim in comparison.claims]
            parts += ["## Ratios", HOW_TO_READ, table(HEAD, rows)]
            parts.append("\n".join(f"- {line}" for comparison in done for line in details(comparison)))
        if self.meter and self.meter[1].metered_s:
            parts += ["## The meter's threads", meter_cost(*self.meter)]
        parts += [f"Not measured: {note}." for note in self.notes]
        return "\n\n".join(parts) + "\n"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def ratio_row(claim: Claim) -> tuple[str, ...]:
    """Return a claim's row: estimate, bounds and verdict."""
    estimate = claim.estimate
    if estimate is None:
        return (claim.what, f"0 of {claim.planned}", "–", "–", f"{claim.limit:g}", "–", f"**{claim.verdict}**")
    n = str(estimate.n) if estimate.n == claim.planned else f"{estimate.n} of {claim.planned}"
    lower = "–" if estimate.lower is None else f"{estimate.lower:.4f}"
    margin = "–" if estimate.margin is None else f"{estimate.margin:.2%}"
    verdict = f"**{claim.verdict}**" + (f": {claim.void}" if claim.void else "")
    return (claim.what, n, f"{estimate.ratio:.4f}", lower, f"{claim.limit:g}", margin, verdict)


def details(comparison: Comparison) -> Iterator[str]:
    """Yield the data behind the ratios of a comparison."""
    what = comparison.claims[0].what
    if comparison.blocks:
        lengths_s = [seconds for _, seconds, _ in comparison.blocks]
        yield (
            f"{what}: {comparison.on}; {comparison.passes} × {comparison.requests} requests per block, blocks of "
            f"{min(lengths_s):.1f} … {max(lengths_s):.1f} s; "
            f"{comparison.rate_of('A'):,.1f} against {comparison.rate_of('B'):,.1f} output tokens/s"
        )
        took_s = sorted(took_s for quadruple in comparison.durations_s for _, took_s in quadruple)
        yield f"{what}: {len(took_s)} passes, median {median(took_s):.3f} s, longest {took_s[-1]:.3f} s"
    for claim in comparison.claims:
        values = ", ".join(f"{100 * value:+.2f}" for value in claim.log_ratios)
        yield f"{claim.what}, 100 × log ratio per quadruple: {values or 'none yet'}"
    if carryover := comparison.carryover:
        lower = "–" if carryover.lower is None else f"{carryover.lower:.4f}"
        yield f"{what}, carry-over: {carryover.ratio:.4f}, lower bound {lower}"


def meter_cost(what: str, cost: MeterCost) -> str:
    """Return the cost of sampling as a table."""
    share = cost.cpu_s / cost.metered_s
    cpu = f"{share:.2%} of one CPU for {cost.threads} thread(s), over {cost.metered_s:.0f} s of blocks"
    inside = f"{mean(cost.busy):.1%} (mean of {len(cost.busy)}, most {max(cost.busy):.1%})" if cost.busy else "–"
    rows = [
        ("metered", f"{what}; NVML's meter alone, without RAPL's and a progress line"),
        ("CPU time of the sampling threads", cpu),
        ("share of time inside NVML calls, per GPU", inside),
    ]
    return table(("what", "figure"), rows)
