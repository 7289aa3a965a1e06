"""Series of a pass, as numpy arrays. All instants are CLOCK_MONOTONIC nanoseconds of the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray  # noqa: TC002 - pydantic reads it


@dataclass(frozen=True)
class TokenSeries:
    """Cumulative output tokens of a pass at instants; both arrays of shape (n,)."""

    at_ns: NDArray[np.int64]
    output_tokens: NDArray[np.int64]


@dataclass(frozen=True)
class Steps:
    """The engine's steps in a pass, a forward pass each, in order of their start; steps of replicas overlap.

    Each array has shape (n,), and (0,) where the engine does not know the figure; all are empty where it reports no
    steps.

    Attributes:
        start_ns: When the engine began to compute the step: it was submitted, and the step before had ended.
        end_ns: When its tokens were there.
        prompt_tokens: Prompt tokens computed, without cached and padding. Of a prompt in chunks, the step's chunk.
        decoded_tokens: Output tokens of sequences past their prefill: all but each request's first, which comes out of
            its prefill.
        sequences: Sequences computed, be it for a token that does not count.
        context_tokens: Positions whose keys and values attention read, summed over the sequences; padding where the
            engine reads it.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    decoded_tokens: NDArray[np.int64]
    sequences: NDArray[np.int64]
    context_tokens: NDArray[np.int64]


NO_STEPS = Steps(*[np.zeros(0, dtype=np.int64)] * 6)
