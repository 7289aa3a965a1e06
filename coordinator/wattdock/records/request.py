"""One request as the runner recorded it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RequestRecord:
    """One request as the runner recorded it; None where the engine does not report a value.

    Attributes:
        replica: The engine that served the request; None with a single engine.
        token_gaps_ns: From each token to the one after it; None where the engine's steps tell, and of a single token.
        max_output_tokens: The output limit that the engine was given.
        prompt_hash: Hash of the ids that the engine was given, see the wire; None where the runner does not tell.
    """

    index: int
    submitted_ns: int
    intended_ns: int | None = None
    first_token_ns: int | None = None
    finished_ns: int | None = None
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str = ""
    text: str | None = None
    output_ids: tuple[int, ...] | None = None
    replica: int | None = None
    token_gaps_ns: tuple[int, ...] | None = None
    max_output_tokens: int | None = None
    prompt_hash: int | None = None
