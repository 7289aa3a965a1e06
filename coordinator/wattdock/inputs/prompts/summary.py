"""What an experiment will send, in words: requests, arrivals, lengths, repeats. Pure."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import WorkloadSpec
    from wattdock.inputs.prompts.source import Source


class PromptSummary(NamedTuple):
    """What the first measured pass of an experiment sends.

    Attributes:
        text: For people: requests, arrivals, lengths, repeated prompts.
        format, ignored: As in `Source`.
    """

    text: str
    format: str | None = None
    ignored: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, work: WorkloadSpec, source: Source | None, arrivals_ns: Sequence[int], *, requests: int
    ) -> PromptSummary:
        """Return what an experiment sends of a source, None for synthetic prompts, at an open loop's arrivals.

        Lengths are those of a trace as far as a pass replays it, and of any other source as a whole.

        Args:
            requests: The least number of requests in a pass.
        """
        requests, at_least = len(arrivals_ns) or requests, bool(work.min_duration_s and not arrivals_ns)
        sent = f"{'at least ' if at_least else ''}{pluralize(requests, 'request')} per pass"
        if arrivals_ns:
            span_s = arrivals_ns[-1] / NS_PER_S
            sent += f" in {span_s:.5g} s" + (f" ({requests / span_s:.3g} per s)" if span_s else "")
        if source is None:
            return cls(sent)
        count = len(source.items)
        items = source.items[: requests if work.arrival == "trace" else count]
        listed = work.prompts.count or (count if work.sends_whole_file else work.prompts_per_pass)
        of_all = f"{listed:,} of " if listed < count and not arrivals_ns else ""
        parts = [sent, f"{of_all}{pluralize(count, 'prompt')} (format: {source.format})"]
        if source.prompt_tokens:
            parts.append(f"prompt tokens {_quantiles(source.prompt_tokens[: len(items)])}")
        answers = [limit for limit in source.max_output_tokens[: len(items)] if limit]
        if len(answers) == len(items):
            parts.append(f"answer tokens {_quantiles(answers)}")
        if not any(isinstance(item, int) for item in items):
            different = {bytes(item) if isinstance(item, array) else item for item in source.items}
            share = 1 - len(different) / count
            parts.append(f"{share:.1%} of them equal an earlier one" if share else "all different")
        if not at_least and requests > count:
            parts.append(f"each is sent {requests / count:.3g} times in a pass")
        if source.ignored:
            parts.append(f"ignored: {', '.join(source.ignored)}")
        return cls("; ".join(parts), source.format, source.ignored)


def _quantiles(lengths: Sequence[int]) -> str:
    """Return median, the least length that nine of ten do not exceed, and the largest."""
    values = np.array(lengths)
    p90 = np.quantile(values, 0.9, method="inverted_cdf")
    return f"{np.median(values):g} / {p90} / {values.max()} (median / p90 / max)"
