"""What an experiment will send, in words: requests, arrivals, repeats. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wattdock.clock import NS_PER_S
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import WorkloadSpec
    from wattdock.inputs.prompts.source import Source


class PromptSummary(NamedTuple):
    """What the first measured pass of an experiment sends.

    Attributes:
        text: For people: requests, arrivals, repeated prompts.
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
        listed = work.prompts.count or (count if work.sends_whole_file else work.prompts_per_pass)
        of_all = f"{listed:,} of " if listed < count and not arrivals_ns else ""
        parts = [sent, f"{of_all}{pluralize(count, 'prompt')} (format: {source.format})"]
        if not at_least and requests > count:
            parts.append(f"each is sent {requests / count:.3g} times in a pass")
        if source.ignored:
            parts.append(f"ignored: {', '.join(source.ignored)}")
        return cls("; ".join(parts), source.format, source.ignored)
