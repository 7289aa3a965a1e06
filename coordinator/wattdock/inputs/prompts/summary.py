"""What an experiment will send, in figures and in words: requests, arrivals, lengths, repeats. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import WorkloadSpec
    from wattdock.inputs.prompts.formats import Item
    from wattdock.inputs.prompts.source import Source


class Quantiles(NamedTuple):
    """Lengths; p90 is the least length that nine of ten do not exceed."""

    median: float
    p90: int
    most: int

    def __str__(self) -> str:
        return f"{self.median:g} / {self.p90} / {self.most}"

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Quantiles:
        """Return the quantiles of at least one length."""
        values = np.array(lengths)
        return cls(float(np.median(values)), int(np.quantile(values, 0.9, method="inverted_cdf")), int(values.max()))


@dataclass(frozen=True)
class PromptSummary:
    """What the first measured pass of an experiment sends, and the source that the pass takes it from.

    Attributes:
        requests: Of a pass; at least so many where `at_least`.
        span_s: From the pass's start to the last arrival of an open loop; None for other kinds of arrival.
        format, ignored: As in `Source`.
        prompts: How many the source has; None where it has as many as are asked for.
        prompt_tokens, prompt_characters, answer_tokens: Of a trace as far as a pass replays it, of any other source as
            a whole; None where not all are known.
        repeated_share: Prompts of the source that an earlier one of it equals, in content; lengths are no content.
    """

    requests: int
    at_least: bool = False
    span_s: float | None = None
    format: str | None = None
    ignored: tuple[str, ...] = ()
    prompts: int | None = None
    prompt_tokens: Quantiles | None = None
    prompt_characters: Quantiles | None = None
    answer_tokens: Quantiles | None = None
    repeated_share: float | None = None

    @classmethod
    def of(cls, work: WorkloadSpec, source: Source | None, arrivals_ns: Sequence[int]) -> PromptSummary:
        """Return what an experiment sends of a source, None for synthetic prompts, at an open loop's arrivals."""
        span_s = arrivals_ns[-1] / NS_PER_S if arrivals_ns else None
        requests, at_least = len(arrivals_ns) or work.requests_per_pass, bool(work.min_duration_s and not arrivals_ns)
        if source is None:
            return cls(requests, at_least, span_s)
        count = len(source.items)
        items = source.items[: requests if work.arrival == "trace" else count]
        answers = [limit for limit in source.max_output_tokens[: len(items)] if limit]
        lengths = Quantiles.of([_length(item) for item in items])
        of_text = {isinstance(item, (str, tuple)) for item in items}
        return cls(
            *(requests, at_least, span_s, source.format, source.ignored, count),
            prompt_tokens=lengths if of_text == {False} else None,
            prompt_characters=lengths if of_text == {True} else None,
            answer_tokens=Quantiles.of(answers) if len(answers) == len(items) else None,
            repeated_share=source.repeated_share,
        )

    @property
    def rate_per_s(self) -> float | None:
        """Mean rate of an open loop's arrivals, requests over their span; None where they all come at once."""
        return self.requests / self.span_s if self.span_s else None

    def __str__(self) -> str:
        sent = f"{'at least ' if self.at_least else ''}{pluralize(self.requests, 'request')} per pass"
        if self.span_s is not None:
            sent += f" in {self.span_s:.5g} s" + (f" ({self.rate_per_s:.3g} per s)" if self.rate_per_s else "")
        lengths = {
            "prompt tokens": self.prompt_tokens,
            "characters of prompts": self.prompt_characters,
            "answer tokens": self.answer_tokens,
        }
        parts = [sent] if self.prompts is None else [sent, f"{pluralize(self.prompts, 'prompt')} ({self.format})"]
        parts += [f"{name} {known} (median / p90 / max)" for name, known in lengths.items() if known]
        if self.repeated_share is not None:
            share = f"{self.repeated_share:.1%} of them" if self.repeated_share else "none"
            parts.append(f"{share} repeat an earlier one of the source")
        if self.prompts and not self.at_least and self.requests > self.prompts:
            parts.append("the source is gone through again in a pass")
        return "; ".join(parts + ([f"ignored: {', '.join(self.ignored)}"] if self.ignored else []))


def _length(item: Item | int) -> int:
    """Tokens of ids, characters of a text or of all texts of a chat."""
    if isinstance(item, int):
        return item
    return sum(len(text) for _, text in item) if isinstance(item, tuple) else len(item)
