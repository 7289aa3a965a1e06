"""A result by the measure of the AI Energy Score, GPU Wh per 1,000 queries, and which of its conditions it met.

Source: huggingface/AIEnergyScore, index.md, text_generation.yaml and reasoning_helpers.py, commit a5b9a04a.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.forms.rungs import Factor
from wattdock.text import significant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattdock.forms.facts import Facts

# Conditions: queries in a run and runs, tokens of an answer, and the most tokens of a reasoning model's answer.
QUERIES, RUNS, TOKENS, MOST_TOKENS = 1000, 10, 10, 8192
# Decimal GB that tell the H100 of 80 GB from that of 94.
MOST_GB = 90


def written(facts: Facts) -> str:
    """Return the statement. Stars are the leaderboard's, for its own runs; this form has none."""
    met = {True: "yes", False: "no", None: "unknown"}
    # kWh for a million tokens × tokens of a query are Wh for a thousand queries.
    boards = facts.rungs.rungs[0].times(Factor(facts.answer_tokens, 0.0, ""), "boards", "", "Wh")
    known = f"{boards.interval} (95 %)" if boards.interval else f"({facts.budget.reason})"
    assert boards.value is not None
    wh = f"{significant(boards.value)} Wh per {QUERIES:,} queries"
    figure = f"**{wh}** {known}: {facts.rungs.label}, {facts.hardware}"
    covers = f"Covers: {facts.energy.boundary_statement} Audit: {facts.rungs.audit}."
    head = ["## GPU energy by the AI Energy Score's measure", figure, covers, "| condition | asked | here | met |"]
    rows = [f"| {name} | {asked} | {here} | {met[is_met]} |" for name, asked, here, is_met in _conditions(facts)]
    return "\n".join(["\n\n".join(head), "|---|---|---|---|", *rows, ""])


def _conditions(facts: Facts) -> Iterator[tuple[str, str, str, bool | None]]:
    """Yield each condition: what is asked, what was measured, and whether it is met; None for unknown."""
    environment, work, done = facts.environment, facts.result.config.workload, facts.performance
    are_h100 = {"H100" in name for name in environment.gpu_names} == {True}
    sizes_gb = environment.gpu_vram_gb
    have_80_gb = all(gb < MOST_GB for gb in sizes_gb if gb) and (True if sizes_gb and all(sizes_gb) else None)
    runs, tokens = len(facts.energy.passes), facts.answer_tokens
    yield "GPUs", "NVIDIA H100 80GB", facts.hardware, are_h100 and have_80_gb
    yield "requests in flight", "1", str(work.batch_size), work.batch_size == 1
    yield "queries in a run", f"{QUERIES:,}", f"{done.requests / runs:,.6g}", done.requests == QUERIES * runs
    yield "runs", str(RUNS), str(runs), runs == RUNS
    # No result says whether a model thought.
    asked, may_think = f"{TOKENS}; with thoughts 1 to {MOST_TOKENS:,}", work.output_lengths.max == MOST_TOKENS
    yield "tokens of an answer", asked, f"{tokens:,.4g} on average", tokens == TOKENS or (None if may_think else False)
    weights = environment.model.weights
    # A model's own weights may be quantised, as may others' copies of them.
    are_own = False if weights.startswith("random") or environment.model.kind == "embedded" else None
    yield "weights", "the model's own", weights, weights == "real" or are_own
    sent, own = f"{environment.dataset}, SHA-256 {environment.dataset_sha256}", ("bundled", "synthetic")
    yield "prompts", "EnergyStarAI/text_generation", sent, False if environment.dataset in own else None
