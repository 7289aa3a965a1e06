"""What a pass was to send, and which of its requests were something else. Pure."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from pydantic import NonNegativeInt, PositiveInt

from wattdock.values import Stored
from wattdock_proto.prompt_hash import hash_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import ExperimentConfig
    from wattdock.inputs import PromptSet
    from wattdock.records.request import RequestRecord


class Lines(Stored):
    """Lines of a file, or of the bundled set, that a pass goes through, numbered in the order that the seed makes.

    Attributes:
        first: Of the pass's first request; its neighbours follow it.
        listed: Number of requests after which the pass begins anew.
        total: Of the whole file.
    """

    first: NonNegativeInt
    listed: PositiveInt
    total: PositiveInt

    def of(self, index: int) -> int:
        """Return the line of the request with this index."""
        return (self.first + index % self.listed) % self.total


@dataclass(frozen=True)
class DeclaredWork:
    """What a pass was to send.

    Attributes:
        prompt_tokens: Mean length of a prompt in the long run: of the distribution, or of the whole file; None for
            prompts of text.
        output_tokens: Mean length of an answer, likewise; None where answers may end before their limit.
        context_tokens: Mean over answers, likewise, of the positions before each of its tokens but the first.
        gap_s: Mean time between a trace's arrivals, at its speed; None without a trace.
        lines: Which lines of a file its list holds; None for synthetic prompts.
        staggered: Number of first requests whose answers are shares of their prompts' limits.
        texts: Prompts of text, whose ids only the runner knows.
        mismatches: Number of requests that were not what was to be sent, by what differed: "order", "instant",
            "prompt", "output limit" or "answer length".
    """

    prompt_tokens: float | None = None
    output_tokens: float | None = None
    context_tokens: float | None = None
    gap_s: float | None = None
    lines: Lines | None = None
    staggered: int = 0
    texts: int = 0
    mismatches: dict[str, int] = field(default_factory=dict)

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
        most = config.workload.output_lengths.max
        limits = [limit or most for limit in prompts.max_output_tokens]
        of_prompts, of_answers = prompts.means
        place, listed, lines = prompts.first_line, len(prompts.items), prompts.lines
        return cls(
            prompt_tokens=of_prompts,
            output_tokens=of_answers if ignore_eos or prompts.declares_answers else None,
            context_tokens=prompts.context_tokens,
            gap_s=prompts.gap_s,
            lines=Lines(first=place, listed=listed, total=lines) if lines else None,
            staggered=len(prompts.first_output_tokens),
            texts=sum(not isinstance(item, array) for item in prompts.items),
            mismatches=_mismatches(prompts, limits, requests, start_ns=start_ns, ignore_eos=ignore_eos),
        )


NOTHING_DECLARED = DeclaredWork()


def _mismatches(
    prompts: PromptSet, limits: Sequence[int], requests: Sequence[RequestRecord], *, start_ns: int, ignore_eos: bool
) -> dict[str, int]:
    ids = {i: item for i, item in enumerate(prompts.items) if isinstance(item, array)}
    hashes: dict[int, int | None] = {i: hash_of(item) for i, item in ids.items()}
    # The ids of a text are the runner's: the same at each repeat, and not those of another text, but for whitespace
    # around a message, which a chat template may leave out.
    chats = {i: (("user", item),) if isinstance(item, str) else item for i, item in enumerate(prompts.items)}
    texts = {
        i: [(role, said.strip()) for role, said in chat] for i, chat in chats.items() if not isinstance(chat, array)
    }
    text_of: dict[int | None, object] = {}
    first, arrivals_ns = prompts.first_output_tokens, prompts.arrivals_ns
    found = Counter[str]()
    for position, request in enumerate(requests):
        place, index = request.index % len(limits), request.index
        limit = first[index] if index < len(first) else limits[place]
        due_ns = start_ns + arrivals_ns[index] if index < len(arrivals_ns) else None
        text = texts.get(place)
        is_known = place in ids or text_of.setdefault(request.prompt_hash, text) == text
        differs = {
            "order": index != position,
            "instant": bool(arrivals_ns) and request.intended_ns != due_ns,
            "prompt": request.prompt_hash != hashes.setdefault(place, request.prompt_hash) or not is_known,
            "output limit": request.max_output_tokens != limit,
            "answer length": (request.output_tokens or 0) > limit or (ignore_eos and request.output_tokens != limit),
        }
        found.update(name for name, is_so in differs.items() if is_so)
    return dict(found)
