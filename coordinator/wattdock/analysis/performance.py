"""How fast the measured passes were. Pure."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from wattdock.analysis.result_schema import Performance, Quantiles
from wattdock.clock import NS_PER_S
from wattdock.values import all_known, known_sum

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.records import PassRecord, RequestRecord


def performance(passes: Sequence[PassRecord], *, offered_rate_per_s: float | None) -> Performance | None:
    """Return speed over all `passes` together; None without any."""
    if not passes:
        return None
    duration_s = sum(one.span.duration_s for one in passes)
    requests = [request for one in passes for request in one.requests]
    output_tokens = sum(one.output_tokens for one in passes)
    return Performance(
        duration_s=duration_s,
        requests=len(requests),
        prompt_tokens=known_sum(one.prompt_tokens for one in passes),
        cached_prompt_tokens=known_sum(one.cached_prompt_tokens for one in passes),
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / duration_s,
        requests_per_s=len(requests) / duration_s,
        offered_rate_per_s=offered_rate_per_s,
        schedule_lag_share=_worst(map(schedule_lag_share, passes)),
        arrivals_min=min((len(one.requests) for one in passes if is_scheduled(one)), default=None),
        arrivals_expected=known_sum(arrivals_expected(one, offered_rate_per_s) for one in passes),
        backlog_slope=_worst(map(backlog_slope, passes)),
        ttft=quantiles(map(ttft_s, requests)),
        tpot=quantiles(map(tpot_s, requests)),
        e2e=quantiles(map(e2e_s, requests)),
    )


def _worst(of_passes: Iterable[float | None]) -> float | None:
    """Return the largest; None where it is unknown of one of them."""
    known = all_known(of_passes)
    return max(known) if known else None


def token_disagreements(passes: Sequence[PassRecord]) -> list[str]:
    """Return where a pass's count differs from its requests' counts, their ids, or the end of its token series."""
    found = []
    for measured in passes:
        known = [request for request in measured.requests if request.output_ids is not None]
        counts = {
            "summary": measured.output_tokens,
            "requests": sum(request.output_tokens or 0 for request in measured.requests),
            "series": int(measured.tokens.output_tokens[-1]) if len(measured.tokens.output_tokens) else 0,
        }
        if len(known) == len(measured.requests):
            counts["ids"] = sum(len(request.output_ids or ()) for request in known)
        if len(set(counts.values())) > 1:
            found.append(f"pass {measured.index + 1}: {counts}")
    return found


def undrained(passes: Sequence[PassRecord]) -> list[str]:
    """Return which passes ended before their work had: its joules are then not all in their span."""
    found = []
    for measured in passes:
        last_ns = int(measured.tokens.at_ns[-1]) if len(measured.tokens.at_ns) else measured.span.start_ns
        outside = [
            request
            for request in measured.requests
            if request.finished_ns is None or not measured.span.start_ns <= request.finished_ns <= measured.span.end_ns
        ]
        aborted = sum(request.finish_reason == "abort" for request in measured.requests)
        faults = {
            "the accelerator had work at an end": not measured.span.drained,
            "tokens came after it": last_ns > measured.span.end_ns,
            f"{len(outside)} of its requests did not finish in it": bool(outside),
            f"{aborted} of its requests were aborted": bool(aborted),
        }
        found += [f"pass {measured.index + 1}: {text}" for text, is_so in faults.items() if is_so]
    return found


def schedule_lag_share(measured: PassRecord) -> float | None:
    """Return how far an engine fell behind its schedule in a pass, as a share of the pass; None without a schedule.

    The larger of the last request's delay before it entered the engine, and of what the last quarter of the requests
    took longer than the first: an engine with room for all of them makes them wait inside. One of the last quarter that
    never finished counts as if it had taken the whole pass.
    """
    duration_s = measured.span.duration_s
    requests = sorted(measured.requests, key=lambda request: request.index)
    if not requests or requests[-1].intended_ns is None:
        return None
    delay_s = (requests[-1].submitted_ns - requests[-1].intended_ns) / NS_PER_S
    quarter = -(-len(requests) // 4)
    early_s = [took_s for one in requests[:quarter] if (took_s := e2e_s(one)) is not None]
    late_s = [duration_s if (took_s := e2e_s(one)) is None else took_s for one in requests[-quarter:]]
    growth_s = median(late_s) - (median(early_s) if early_s else 0.0)
    return max(delay_s, growth_s) / duration_s


def arrivals_expected(measured: PassRecord, offered_rate_per_s: float | None) -> float | None:
    """Return how many requests arrive on average until the last one that a pass took; None without a schedule."""
    if not is_scheduled(measured) or offered_rate_per_s is None:
        return None
    taken_s = (max(one.submitted_ns for one in measured.requests) - measured.span.start_ns) / NS_PER_S
    return offered_rate_per_s * taken_s


def backlog_slope(measured: PassRecord) -> float | None:
    """Return how fast requests' delay behind their intended arrival grows, s/s.

    The larger of the slopes (least squares) of their delay before they entered the engine and of their latency: one
    with room for all of them makes them wait inside. None without a schedule, and where all were to arrive at one
    instant.
    """
    if not is_scheduled(measured):
        return None
    requests = measured.requests
    entered = [((one.intended_ns or 0), one.submitted_ns) for one in requests]
    left = [((one.intended_ns or 0), one.finished_ns) for one in requests if one.finished_ns is not None]
    slopes = [slope for instants in (entered, left) if (slope := _delay_slope(instants)) is not None]
    return max(slopes, default=None)


def _delay_slope(instants_ns: Sequence[tuple[int, int]]) -> float | None:
    """Slope of how long after the first of each pair the second came, over the first ones; None without two of them."""
    pairs = np.array(instants_ns, dtype=np.int64).reshape(-1, 2)
    since_s = (pairs[:, 0] - pairs[:1, 0]) / NS_PER_S
    if not len(pairs) or np.ptp(since_s) == 0:
        return None
    return float(np.polyfit(since_s, (pairs[:, 1] - pairs[:, 0]) / NS_PER_S, 1)[0])


def is_scheduled(measured: PassRecord) -> bool:
    """Whether it is known of every request when it was meant to arrive, as in an open loop."""
    requests = measured.requests
    return bool(requests) and all(one.intended_ns is not None for one in requests)


def ttft_s(request: RequestRecord) -> float | None:
    """Return the time to first token in seconds, from the intended arrival where there was one."""
    return _since_arrival_s(request, request.first_token_ns)


def e2e_s(request: RequestRecord) -> float | None:
    """Return the time from arrival to the last token in seconds."""
    return _since_arrival_s(request, request.finished_ns)


def tpot_s(request: RequestRecord) -> float | None:
    """Return the mean time per output token after the first, in seconds; None with fewer than two tokens."""
    if request.first_token_ns is None or request.finished_ns is None or (request.output_tokens or 0) < 2:
        return None
    return (request.finished_ns - request.first_token_ns) / NS_PER_S / ((request.output_tokens or 0) - 1)


def quantiles(values: Iterable[float | None]) -> Quantiles | None:
    """Return the distribution of the values that are known, in seconds; None without any."""
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    if known.size == 0:
        return None
    p50, p90, p95, p99 = (float(value) for value in np.quantile(known, [0.5, 0.9, 0.95, 0.99]))
    return Quantiles(
        count=int(known.size),
        mean_s=float(known.mean()),
        p50_s=p50,
        p90_s=p90,
        p95_s=p95,
        p99_s=p99,
        max_s=float(known.max()),
    )


def _since_arrival_s(request: RequestRecord, instant_ns: int | None) -> float | None:
    if instant_ns is None:
        return None
    arrived_ns = request.submitted_ns if request.intended_ns is None else request.intended_ns
    return (instant_ns - arrived_ns) / NS_PER_S
