"""Everything that a benchmark run has seen so far, and the Markdown that says so; pure but for the clock's date."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import mean, median
from typing import TYPE_CHECKING

from wattdock import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from comparison import Comparison
    from metered import MeterCost
    from overheads import Row
    from paired import Claim

HOW_TO_READ = """\
Both arms run on one live engine in one process. Every block is the same number of passes and requests, on prompts of
their own; a pass begins and ends on a drained engine. The passes of four blocks take turns, one of each at a time
(ABBA, in every other quadruple BAAB): only what changes faster blurs a ratio, and each arm comes after itself as often
as after the other. From each quadruple of blocks comes one value: the logarithm of the ratio of rates, each arm's times
summed, so that a pause that the run met counts for as long as it lasts; of what comes more seldom than that, no run
says anything. One quadruple runs before the first and does not count. The
bound is one-sided, 95 %, by Student's t over the quadruples' values. *Margin* is what so many values with such a
scatter can resolve: a smaller cost cannot be told from none. `holds`: the lower bound reaches the limit, a ratio above
1 counting as 1, since nothing in the first arm makes an engine faster; `fails`: the upper bound is below it;
`unresolved` is neither, and no pass. So is a lower bound above 1: the arms then differ in something else, which may
hide a cost. *Left to the next* is what a pass of the first arm costs the pass after it, whichever arm that is: turns
let it fall on both, so neither the ratio nor the verdict has it.

*Runner* is the coordinator's client, the wire, the servicer, the backend's loop and the recorder. *Bare loop* is the
engine alone, nothing recorded. Not told apart: the runner's idle threads and one heartbeat a second, which both arms
have, and what lies outside the span (sending prompts, tokenising, fetching the record)."""

HEAD = ("ratio", "n", "seen", "lower bound", "limit", "margin", "verdict")


@dataclass
class Figures:
    """What was measured so far.

    Attributes:
        command: As it was typed.
        revision: The commit of the sources.
        machine: Without its name.
        meter: What the sampling threads took, and what they read.
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
            parts.append(table(("what", "median", "range"), self.rows))
        if self.comparisons:
            done = list(self.comparisons.values())
            parts += ["## Ratios", HOW_TO_READ, ratios(done)]
            parts.append("\n".join(f"- {line}" for comparison in done for line in details(comparison)))
        if self.meter and self.meter[1].metered_s:
            parts += ["## The meter's threads", meter_cost(*self.meter)]
        parts += [f"Not measured: {note}." for note in self.notes]
        return "\n\n".join(parts) + "\n"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def ratios(comparisons: list[Comparison]) -> str:
    """Return one row per claim."""
    return table(HEAD, [ratio_row(claim) for comparison in comparisons for claim in comparison.claims])


def ratio_row(claim: Claim) -> tuple[str, ...]:
    """Return what was seen of one claim."""
    seen = claim.seen
    if seen is None:
        return (claim.what, f"0 of {claim.planned}", "–", "–", f"{claim.limit:g}", "–", f"**{claim.verdict}**")
    n = str(seen.n) if seen.n == claim.planned else f"{seen.n} of {claim.planned}"
    lower = "–" if seen.lower is None else f"{seen.lower:.4f}"
    margin = "–" if seen.margin is None else f"{seen.margin:.2%}"
    verdict = f"**{claim.verdict}**" + (f": {claim.void}" if claim.void else "")
    return (claim.what, n, f"{seen.ratio:.4f}", lower, f"{claim.limit:g}", margin, verdict)


def details(comparison: Comparison) -> Iterator[str]:
    """Yield what the ratios of one comparison were computed from."""
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
    if left := comparison.left_to_the_next:
        lower = "–" if left.lower is None else f"{left.lower:.4f}"
        yield f"{what}, left to the next: {left.ratio:.4f}, lower bound {lower}"


def meter_cost(what: str, cost: MeterCost) -> str:
    """Return what sampling took."""
    share = cost.cpu_s / cost.metered_s
    cpu = f"{share:.2%} of one CPU for {cost.threads} thread(s), over {cost.metered_s:.0f} s of blocks"
    inside = f"{mean(cost.busy):.1%} (mean of {len(cost.busy)}, most {max(cost.busy):.1%})" if cost.busy else "–"
    rows = [
        ("metered", f"{what}; NVML's meter alone, without RAPL's and a progress line"),
        ("CPU time of the sampling threads", cpu),
        ("share of time inside NVML calls, per GPU", inside),
    ]
    return table(("what", "figure"), rows)
