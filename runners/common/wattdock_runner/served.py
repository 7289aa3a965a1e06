"""Keep what an engine that batches continuously gave one request, and record it once the pass is over.

Knows no engine: each backend adds what it needs to know of its own engine's request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattdock_runner.text import decode

if TYPE_CHECKING:
    from wattdock_runner.backend import Workload
    from wattdock_runner.recorder import PassRecorder
    from wattdock_runner.text import Tokenizer


@dataclass
class Served:
    """One request that entered an engine, as seen from outside it; instants in ns.

    Attributes:
        index: In order of submission, from 0.
        intended_ns: When an open-loop schedule wanted it submitted.
        steps: Instant and number of new tokens of each answer of the engine that brought some.
        ids: All tokens so far.
        finish_reason: "stop", "length" or "abort".
    """

    index: int
    prompt_tokens: int
    submitted_ns: int
    intended_ns: int | None
    steps: list[tuple[int, int]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    cached_prompt_tokens: int | None = None
    finish_reason: str = "abort"

    def record(self, recorder: PassRecorder, workload: Workload, tokenizer: Tokenizer | None) -> None:
        """Write this request into the pass's record, with text and ids where the workload wants them."""
        recorder.submitted(
            self.index,
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            at_ns=self.submitted_ns,
            intended_ns=self.intended_ns,
        )
        for at_ns, tokens in self.steps:
            recorder.emitted(self.index, tokens, at_ns)
        recorder.finished(
            self.index,
            self.finish_reason,
            text=decode(tokenizer, self.ids) if workload.return_text else None,
            output_ids=self.ids if workload.return_token_ids else None,
        )
