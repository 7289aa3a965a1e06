"""Figures of the measured passes under different definitions of what counts."""

from __future__ import annotations

from pydantic import Field

from wattdock.values import Stored


class WindowFigure(Stored):
    """One pass under one window definition; null with the reason where the pass holds no such window.

    Attributes:
        timing_j: Null for "begin-end", which takes plain counter readings and cannot know it.
        block_spread: (Largest − smallest) ÷ mean joules per token over four equal blocks of the window.
    """

    window: str
    restart: int
    pass_index: int = Field(alias="pass")
    start_ns: int | None = None
    end_ns: int | None = None
    duration_s: float | None = None
    output_tokens: int | None = None
    total_j: float | None = None
    timing_j: float | None = None
    energy_per_output_token_j: float | None = None
    block_spread: float | None = None
    reason: str | None = None


class WindowSummary(Stored):
    """Joules per output token by window definition; `drained` is the one that a result's headline uses.

    Attributes:
        energy_per_output_token_j: Sum of joules over sum of tokens of all passes.
        relative_spread: (Largest − smallest of the definitions that have a figure) ÷ drained.
    """

    energy_per_output_token_j: dict[str, float | None]
    relative_spread: float | None
    passes: list[WindowFigure]
