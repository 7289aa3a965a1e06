"""What a pass was to send, and which of its requests were something else. Pure."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Self

from wattdock.inputs import PromptSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import ExperimentConfig
    from wattdock.records.restart import RequestRecord


@dataclass(frozen=True)
class DeclaredWork:
    """What a pass was to send.

    Attributes:
        prompt_tokens: Mean length of a prompt: of the distribution, or of the pass's list; None where no prompt's
            length is known.
        output_tokens: Mean length of an answer, likewise; None where answers may end before their limit.
        drawn: Each restart draws its own prompts; else all send the same.
        unlike: How many requests were something else, by what differed: "order", "instant", "prompt", "output limit"
            or "answer length".
    """

    prompt_tokens: float | None
    output_tokens: float | None
    drawn: bool
    unlike: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        prompts: PromptSet,
        config: ExperimentConfig,
        requests: Sequence[RequestRecord],
        *,
        start_ns: int,
        ignore_eos: bool,
    ) -> Self:
        """Return what a pass was to send, held against its requests.

        Args:
            requests: In order of their index.
            start_ns: The pass's start.
            ignore_eos: Whether answers run to their limits.
        """
        work = config.total_workload
        most = work.output_lengths.max
        limits = [limit or most for limit in prompts.max_output_tokens]
        of_prompts, of_answers = prompts.lengths(config)
        drawn = config.prompts.source == "synthetic"
        # A list of conversations need not hold as many of each turn.
        as_distribution = drawn and not work.prompts.repeats_tokens
        by_place = {request.index % len(limits): request.prompt_tokens for request in requests}
        known = [len(item) if isinstance(item, array) else by_place.get(i) for i, item in enumerate(prompts.items)]
        tokens = [count for count in known if count is not None]
        # Answers that a distribution or a trace declares; a plain limit is what an answer may have at most.
        declares_answers = ignore_eos or not isinstance(work.max_output_tokens, int) or prompts.of_lengths
        return cls(
            prompt_tokens=of_prompts.mean if of_prompts and as_distribution else fmean(tokens) if tokens else None,
            output_tokens=(of_answers.mean if as_distribution else fmean(limits)) if declares_answers else None,
            drawn=drawn,
            unlike=_unlike(prompts, limits, requests, start_ns=start_ns, ignore_eos=ignore_eos),
        )

    @classmethod
    def of_settings(cls, config: ExperimentConfig) -> Self:
        """Return what settings alone declare, for a record that does not hold it: its restarts sent the same."""
        work = config.total_workload
        if config.prompts.source != "synthetic":
            return cls(None, None, drawn=False)
        prompts, answers = PromptSet.lengths(config)
        runs_to_limit = config.model.shape is not None if work.ignore_eos is None else work.ignore_eos
        exact = runs_to_limit or not isinstance(work.max_output_tokens, int)
        return cls(prompts.mean if prompts else None, answers.mean if exact else None, drawn=False)


def hash_of(ids: array[int]) -> int:
    """Return the hash of a prompt's ids, as `prompt_hash` in runner.proto explains it."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return int.from_bytes(hashlib.sha256(packed).digest()[:8], "big")


def _unlike(
    prompts: PromptSet, limits: Sequence[int], requests: Sequence[RequestRecord], *, start_ns: int, ignore_eos: bool
) -> dict[str, int]:
    hashes: dict[int, int | None] = {
        i: hash_of(item) for i, item in enumerate(prompts.items) if isinstance(item, array)
    }
    first, arrivals_ns = prompts.first_output_tokens, prompts.arrivals_ns
    found = Counter[str]()
    for position, request in enumerate(requests):
        place = request.index % len(limits)
        limit = first[request.index] if request.index < len(first) else limits[place]
        # Of a text, the ids are the runner's: equal at each repeat.
        differs = {
            "order": request.index != position,
            "instant": bool(arrivals_ns)
            and (request.index >= len(arrivals_ns) or request.intended_ns != start_ns + arrivals_ns[request.index]),
            "prompt": request.prompt_hash != hashes.setdefault(place, request.prompt_hash),
            "output limit": request.max_output_tokens != limit,
            "answer length": (request.output_tokens or 0) > limit or (ignore_eos and request.output_tokens != limit),
        }
        found.update(name for name, is_so in differs.items() if is_so)
    return dict(found)
