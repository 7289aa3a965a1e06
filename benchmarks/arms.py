"""How a pass of a bare runner is done; the coordinator says which by the workload's seed, which greedy passes ignore.

Shared by both sides of the wire, so it imports neither's packages.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock_runner.recorder import PassRecorder
    from wattdock_runner.values import Prompt


class Way(IntEnum):
    """One way to serve the same prompts on the same live engine.

    Attributes:
        RUNNER: As the runner does, everything recorded.
        BARE: A loop over the engine with the runner's own sampling, nothing recorded.
        SLOWED: As BARE, and each step keeps its host busy for another hundredth; a comparison must find that.
    """

    RUNNER = 0
    BARE = 1
    SLOWED = 2


def report_bare(
    recorder: PassRecorder,
    prompts: Sequence[Prompt],
    counts: Sequence[int],
    ids: Sequence[Sequence[int]] | None = None,
) -> None:
    """Tell what a bare pass computed, once its span is closed; no instant but the span's ends is known.

    Args:
        counts: New tokens of each prompt, in the prompts' order.
        ids: The new token ids of each prompt, where they were kept.
    """
    from wattdock_runner.recorder import RequestRecord

    recorder.requests = [
        RequestRecord(
            index,
            recorder.span.start_ns,
            len(prompt.content),
            cached_prompt_tokens=0,
            steps=[(recorder.span.end_ns, tokens)],
            output_ids=list(ids[index]) if ids else [],
            finish_reason="length",
        )
        for index, (prompt, tokens) in enumerate(zip(prompts, counts, strict=True))
    ]
