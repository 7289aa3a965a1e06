"""Which requests met the latencies that were asked for, and what those cost. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis.joules import ratio
from wattdock.analysis.performance import answered, arrivals, since_arrival_s, tpot_s
from wattdock.values import Stored, known_sum

if TYPE_CHECKING:
    from wattdock.analysis.measured import Measured
    from wattdock.records import RequestRecord

NO_INSTANTS = "the engine does not tell when requests got their first token and when they ended"


class Goodput(Stored):
    """Requests that met every limit of the settings' `slo`; null with the reason where that is unknown.

    All figures are of the headline's part of the passes (`energy.windows.headline`), and by the requests that arrived
    in its first half, as `e2e` is; an arrival that was never served is not among them (`performance.arrivals_due`).
    Joules are *all* joules of that part ÷ what met the limits: energy of requests that missed them, and of waiting, is
    in.

    Attributes:
        missed: Requests beyond each limit; one may miss several. An aborted request misses all.
        requests_met_per_s: What others call goodput.
        output_tokens_met_per_s: Of requests that met all limits, as are all figures with "met" in their names.
    """

    requests: int | None = None
    requests_met: int | None = None
    missed: dict[str, int] | None = None
    share_met: float | None = None
    requests_met_per_s: float | None = None
    output_tokens_met_per_s: float | None = None
    energy_per_request_met_j: float | None = None
    energy_per_output_token_met_j: float | None = None
    reason: str | None = None


def goodput(measured: Measured) -> Goodput | None:
    """Return which requests of all passes met the settings' `slo`, and their cost; None where nothing was asked."""
    if (slo := measured.config.slo) is None:
        return None
    parts, requests = measured.headline, answered(measured)
    seconds = sum(part.duration_s or 0.0 for part in parts)
    if not requests or not seconds:
        return Goodput(reason="no request arrived in the part of the passes that counts")
    limits_s = slo.limits_s
    if not any(request.finished_ns and (request.first_token_ns or limits_s.keys() == {"e2e"}) for request in requests):
        return Goodput(reason=NO_INSTANTS)
    misses = [_missed(request, limits_s) for request in requests]
    met = [request for request, missed in zip(requests, misses, strict=True) if not missed]
    # For each of the first half there are so many in the whole, if those are like these.
    each = len(arrivals(measured)) / len(requests)
    tokens = sum(request.output_tokens or 0 for request in met) * each
    total_j = known_sum(part.total_j for part in parts)
    unknown = next((part.reason for part in parts if part.reason), None)
    return Goodput(
        requests=len(requests),
        requests_met=len(met),
        missed={name: sum(name in missed for missed in misses) for name in limits_s},
        share_met=len(met) / len(requests),
        requests_met_per_s=len(met) * each / seconds,
        output_tokens_met_per_s=tokens / seconds,
        energy_per_request_met_j=ratio(total_j, len(met) * each),
        energy_per_output_token_met_j=ratio(total_j, tokens),
        reason=unknown if total_j is None else None if met else "no request met it",
    )


def _missed(request: RequestRecord, limits_s: dict[str, float]) -> list[str]:
    """Return the limits that a request was beyond: all where it never ended."""
    if request.finished_ns is None or request.finish_reason == "abort":
        return list(limits_s)
    # The one token of an answer has no time per token after the first.
    per_token_s = 0.0 if request.output_tokens == 1 else tpot_s(request)
    first_s, last_s = (since_arrival_s(request, at_ns) for at_ns in (request.first_token_ns, request.finished_ns))
    taken_s = {"ttft": first_s, "tpot": per_token_s, "e2e": last_s}
    return [name for name, limit_s in limits_s.items() if (taken := taken_s[name]) is None or taken > limit_s]
