"""Whether the figures of a pass can be: what a runner says, or a file holds, is checked before anything is made of it.

Bounds and lengths only: what a figure means is for the audit to judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wattdock.records.restart import PassRecord, RestartRecord

# 146 years, and what the columns of the tables hold.
MAX_NS, MAX_COUNT = 2**62, 2**31 - 1
INSTANTS = ("submitted_ns", "intended_ns", "first_token_ns", "finished_ns")
COUNTS = ("index", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "replica", "max_output_tokens")
STEP_COUNTS = ("prompt_tokens", "decoded_tokens", "sequences")


def require_possible_record(record: RestartRecord) -> None:
    """Check a restart with its passes, as `require_possible` does."""
    _within("the restart", (record.restart,), MAX_COUNT)
    for span in record.spans:
        _within(f"the span {span.name[:40]!r}", (span.start_ns, span.end_ns), MAX_NS)
    for measured in record.passes:
        require_possible(measured)


def require_possible(measured: PassRecord) -> None:
    """Check that the figures of a pass can be, as a runner says them or a file holds them.

    Raises:
        ValueError: Says which figure cannot be.
    """
    for span in (measured.span, *(replica.span for replica in measured.replicas)):
        _within(f"the span {span.name[:40]!r}", (span.start_ns, span.end_ns), MAX_NS)
        if span.end_ns == span.start_ns:
            raise ValueError(f"the span {span.name[:40]!r} takes no time")
    for replica in measured.replicas:
        _within("a replica's last_token_ns", (replica.last_token_ns,), measured.span.end_ns)
    for names, most in ((INSTANTS, MAX_NS), (COUNTS, MAX_COUNT)):
        for name in names:
            _within(f"a request's {name}", (getattr(request, name) for request in measured.requests), most)
    for request in measured.requests:
        _within("a gap between tokens", request.token_gaps_ns or (), MAX_NS)
    counts = ("output_tokens", "prompt_tokens", "arrivals_due", "cacheable_tokens", "tokens_without_ids")
    for name in counts:
        _within(f"the pass's {name}", (getattr(measured, name),), MAX_NS)
    for name in ("client_cpu_share", "client_late_s", "server_ttft_s", "server_itl_s"):
        _within(f"the pass's {name}", (getattr(measured, name),), MAX_COUNT)
    # Of the steps, a column that the engine does not know is empty.
    for kind, columns, unknown in (("tokens", vars(measured.tokens), set[int]()), ("steps", vars(measured.steps), {0})):
        first, *others = map(len, columns.values())
        if not {*others} <= {first} | unknown:
            raise ValueError(f"columns of {kind} have different lengths")
        for name, column in columns.items():
            ends = (int(column.min()), int(column.max())) if column.size else ()
            _within(f"{name} of {kind}", ends, MAX_COUNT if name in STEP_COUNTS else MAX_NS)


def _within(what: str, values: Iterable[float | None], most: int) -> None:
    for value in values:
        if value is not None and not 0 <= value <= most:
            raise ValueError(f"{what} is {str(value)[:30]}")
