"""Speed of the measured passes. Pure."""

from __future__ import annotations

from itertools import compress
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.analysis.blocks import draw_of_speed
from wattdock.analysis.joules import ratio
from wattdock.analysis.occupancy import is_scheduled
from wattdock.clock import NS_PER_S
from wattdock.values import Stored, known_max, known_sum

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from wattdock.analysis.measured import Measured
    from wattdock.records import PassRecord, RequestRecord

# Largest share of arrivals that a pass may leave unserved: an engine that keeps up has a few in its queue at the end.
MAX_LEFT_OUT = 0.05
# Largest relative difference between gaps between steps and gaps between requests' tokens, both summed; ITL needs none.
MAX_GAPS_OFF = 0.05
# Quantiles of the tail, each with the fewest values from which it says more than the largest.
TAIL = ((0.9, 10), (0.95, 20), (0.99, 100))


class Quantiles(Stored):
    """Distribution over requests, or of ITL over tokens, in seconds.

    Attributes:
        p90_s, p95_s, p99_s: Null below 10, 20 and 100 values, where they would be little more than the largest.
    """

    count: int
    mean_s: float
    p50_s: float
    p90_s: float | None
    p95_s: float | None
    p99_s: float | None
    max_s: float


class Serving(Stored):
    """An engine behind its own server: what the client took in its worst pass.

    Attributes:
        client_cpu_share: Busy share of the one thread that sent requests and read answers, 0 to 1.
        client_late_s: By how much it read late what had come: the 99th percentile.
        others_counted: In every pass the server counted as many tokens as it told; more, for others' requests, would
            have ended it.
    """

    client_cpu_share: float
    client_late_s: float
    others_counted: bool = False


class Drafts(Stored):
    """Speculative decoding in the measured passes, as the engine counts it.

    Attributes:
        drafted_tokens: Tokens that were proposed and checked.
        accepted_tokens, rejected_tokens: Those of them that the model agreed with, and the others. An accepted token
            behind the end of its answer is no output token.
        acceptance_rate: Accepted ÷ drafted; null where none was drafted.
        engine_steps: Forward passes of the model; null where the engine does not report its steps.
    """

    drafted_tokens: int
    accepted_tokens: int
    rejected_tokens: int
    acceptance_rate: float | None
    engine_steps: int | None

    @property
    def text(self) -> str:
        """All figures in words."""
        rate = "" if self.acceptance_rate is None else f" ({self.acceptance_rate:.1%})"
        steps = "unknown" if self.engine_steps is None else f"{self.engine_steps:,}"
        counts = f"{self.drafted_tokens:,} drafted, {self.accepted_tokens:,} accepted{rate}"
        return f"{counts}, {self.rejected_tokens:,} rejected; engine steps: {steps}"


class Performance(Stored):
    """Speed over the measured passes; rates and latencies are of the headline's window, `energy.windows.headline`.

    Attributes:
        output_tokens_per_s: Null if unknown.
        draw_of_speed: Its relative standard uncertainty by the list that all restarts send; null where unknown.
        requests_per_s: Requests whose first token came in the window ÷ its seconds.
        mean_in_flight: Requests between submission and last token, mean over the window; null if unknown.
        cached_prompt_share: Share of the prompt tokens that a prefix cache served, 0 to 1.
        cacheable_prompt_tokens: What a prefix cache was meant to serve of conversations; null without these.
        output_tokens: Ids that the engine generated: the end-of-sequence id counts, padding after it does not.
        schedule_lag_share: Delay behind the schedule ÷ duration, in the worst pass; see `schedule_lag_share()`. 0.2 of
            an engine that serves 80 % of the offered rate, one at a time. Null where arrivals follow no schedule.
        arrivals_min: Fewest requests of a pass, where arrivals follow a schedule.
        offered_rate_per_s: Arrivals of an open loop per second, until passes took their last requests.
        arrivals_due: These arrivals, over all passes. Where far fewer were served, the others never entered the engine,
            and latencies leave out the longest waits.
        backlog_slope: Growth of the requests' delay in seconds per second, in the worst pass; see `backlog_slope()`. 0
            for an engine that keeps up, 0.25 for an engine that serves 80 % of the offered rate.
        ttft, tpot, e2e: Time to first token; per output token after the first; to the last token. From the intended
            arrival where there was one, else from submission, of the requests that arrived in the window; `tpot` and
            `e2e` in its first half, see `answered()`.
        itl: Time between a token of the window and the one before it of the same request, each token after the first
            counted once; null with the reason in `itl_reason`. See `inter_token_latency()`.
        drafts: Null without speculative decoding.
        serving: Null for an engine in the runner's own processes.
    """

    duration_s: float
    requests: int
    prompt_tokens: int | None
    cached_prompt_tokens: int | None
    cacheable_prompt_tokens: int | None = None
    cached_prompt_share: float | None = None
    output_tokens: int
    output_tokens_per_s: float | None
    draw_of_speed: float | None = 0.0
    requests_per_s: float
    mean_in_flight: float | None = None
    offered_rate_per_s: float | None = None
    schedule_lag_share: float | None = None
    arrivals_min: int | None = None
    arrivals_due: int | None = None
    backlog_slope: float | None = None
    ttft: Quantiles | None
    tpot: Quantiles | None
    e2e: Quantiles | None
    itl: Quantiles | None = None
    itl_reason: str | None = None
    drafts: Drafts | None = None
    serving: Serving | None = None

    @property
    def arrivals_left_out(self) -> str | None:
        """A sentence on arrivals that were never served; None where they are few."""
        due = self.arrivals_due
        if due is None or self.requests >= due * (1 - MAX_LEFT_OUT):
            return None
        return f"only {self.requests:,} of {due:,} arrivals were served, and latencies are of these"


def performance(measured: Measured) -> Performance | None:
    """Return speed over all passes together; None without a pass."""
    if not measured.passes:
        return None
    passes, duration_s = measured.pass_records, measured.passes_s
    arrived, whole = arrivals(measured), answered(measured)
    counted_tokens = known_sum(figure.output_tokens for figure in measured.headline)
    counted_s = known_sum(figure.duration_s for figure in measured.headline)
    prompt_tokens = known_sum(run_pass.prompt_tokens for run_pass in passes)
    cached_tokens = known_sum(run_pass.cached_prompt_tokens for run_pass in passes)
    due = known_sum(run_pass.arrivals_due for run_pass in passes)
    taken_ns = sum(max((r.submitted_ns for r in each.requests), default=0) - each.span.start_ns for each in passes)
    return Performance(
        duration_s=duration_s,
        requests=sum(len(run_pass.requests) for run_pass in passes),
        prompt_tokens=prompt_tokens,
        cached_prompt_tokens=cached_tokens,
        cached_prompt_share=cached_tokens / prompt_tokens if cached_tokens is not None and prompt_tokens else None,
        cacheable_prompt_tokens=known_sum(run_pass.cacheable_tokens for run_pass in passes),
        output_tokens=sum(run_pass.output_tokens for run_pass in passes),
        output_tokens_per_s=ratio(counted_tokens or None, counted_s),
        draw_of_speed=draw_of_speed(measured),
        requests_per_s=len(measured.requests_with(lambda each: each.first_token_ns)) / (counted_s or duration_s),
        mean_in_flight=mean_in_flight(measured),
        offered_rate_per_s=None if due is None or taken_ns <= 0 else due / taken_ns * NS_PER_S,
        schedule_lag_share=known_max(map(schedule_lag_share, passes)),
        arrivals_min=min((len(run_pass.requests) for run_pass in passes if is_scheduled(run_pass)), default=None),
        arrivals_due=due,
        backlog_slope=known_max(map(backlog_slope, passes)),
        ttft=quantiles(since_arrival_s(request, request.first_token_ns) for request in arrived),
        tpot=quantiles(map(tpot_s, whole)),
        e2e=quantiles(since_arrival_s(request, request.finished_ns) for request in whole),
        **inter_token_latency(measured),
        drafts=drafts(passes),
        serving=serving(passes),
    )


def arrivals(measured: Measured) -> list[RequestRecord]:
    """Return the requests that arrived in the headline's window, at its start included and at its end not."""
    return measured.requests_with(lambda request: arrived_ns(request) + 1)


def answered(measured: Measured) -> list[RequestRecord]:
    """Return those of `arrivals` in the first half of the window, or in the whole pass: others are answered in a drain.

    There are ever fewer beside them then, since no new requests come, and each token takes less.
    """
    kept: list[RequestRecord] = []
    for run_pass, part in zip(measured.pass_records, measured.headline, strict=True):
        at_ns = [arrived_ns(request) + 1 for request in run_pass.requests]
        middle_ns = None if part.window == "drained" else ((part.start_ns or 0) + (part.end_ns or 0)) // 2
        first = [part.holds(each) and (middle_ns is None or each <= middle_ns) for each in at_ns]
        kept += compress(run_pass.requests, first)
    return kept


def mean_in_flight(measured: Measured) -> float | None:
    """Return how many requests were in flight in the headline's window on average; None where not all tell."""
    in_flight_ns = known_sum(
        each.finished_ns
        and max(0, min(each.finished_ns, part.end_ns or 0) - max(each.submitted_ns, part.start_ns or 0))
        for run_pass, part in zip(measured.pass_records, measured.headline, strict=True)
        for each in run_pass.requests
    )
    return ratio(in_flight_ns or None, sum(part.duration_s or 0.0 for part in measured.headline) * NS_PER_S)


def drafts(passes: Sequence[PassRecord]) -> Drafts | None:
    """Return what was drafted in all passes; None without speculative decoding."""
    drafted = known_sum(run_pass.drafted_tokens for run_pass in passes)
    accepted = known_sum(run_pass.accepted_tokens for run_pass in passes)
    if drafted is None or accepted is None:
        return None
    return Drafts(
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        rejected_tokens=drafted - accepted,
        acceptance_rate=accepted / drafted if drafted else None,
        engine_steps=known_sum(len(run_pass.steps.start_ns) or None for run_pass in passes),
    )


def serving(passes: Sequence[PassRecord]) -> Serving | None:
    """Return what stood between runner and engine; None where nothing did."""
    share = known_max(run_pass.client_cpu_share for run_pass in passes)
    late_s = known_max(run_pass.client_late_s for run_pass in passes)
    if share is None or late_s is None:
        return None
    counted = all(run_pass.others_counted for run_pass in passes)
    return Serving(client_cpu_share=share, client_late_s=late_s, others_counted=counted)


def token_disagreements(passes: Sequence[PassRecord]) -> list[str]:
    """Return where a pass's count differs from its requests' counts, their ids, or the end of its token series.

    Tokens whose ids a server did not tell are a disagreement, too.
    """
    disagreements = []
    # A command's work is told by its own script, once.
    for run_pass in (run_pass for run_pass in passes if not run_pass.units):
        ids = [request.output_ids for request in run_pass.requests if request.output_ids is not None]
        counts = {
            "summary": run_pass.output_tokens,
            "requests": sum(request.output_tokens or 0 for request in run_pass.requests),
            "series": int(run_pass.tokens.output_tokens[-1]) if len(run_pass.tokens.output_tokens) else 0,
        }
        if len(ids) == len(run_pass.requests):
            counts["ids"] = sum(map(len, ids)) + run_pass.tokens_without_ids
        if len(set(counts.values())) > 1:
            disagreements.append(f"pass {run_pass.index + 1}: {counts}")
        elif without_ids := run_pass.tokens_without_ids:
            disagreements.append(
                f"pass {run_pass.index + 1}: of {without_ids} of {run_pass.output_tokens} tokens the server told no ids"
            )
    return disagreements


def undrained(passes: Sequence[PassRecord]) -> list[str]:
    """Return the passes that ended before all their work was done: their spans lack a part of its energy."""
    problems = []
    for run_pass in passes:
        last_ns = int(run_pass.tokens.at_ns[-1]) if len(run_pass.tokens.at_ns) else run_pass.span.start_ns
        ends_ns = [request.finished_ns for request in run_pass.requests]
        outside = sum(not (at_ns and run_pass.span.start_ns <= at_ns <= run_pass.span.end_ns) for at_ns in ends_ns)
        aborted = sum(request.finish_reason == "abort" for request in run_pass.requests)
        faults = {
            "tokens came after it": last_ns > run_pass.span.end_ns,
            f"{outside} of its requests did not finish in it": bool(outside),
            f"{aborted} of its requests were aborted": bool(aborted),
        }
        problems += [f"pass {run_pass.index + 1}: {text}" for text, is_so in faults.items() if is_so]
    return problems


def schedule_lag_share(run_pass: PassRecord) -> float | None:
    """Return how far an engine fell behind its schedule in a pass, as a share of the pass; None without a schedule.

    The larger of two delays: that of the last request before it entered the engine, and the difference of median
    latency between the last and the first quarter of the requests, since an engine with room for all requests lets them
    wait inside. A request of the last quarter that never finished counts as if it had taken the whole pass.
    """
    duration_s = run_pass.span.duration_s
    requests = sorted(run_pass.requests, key=lambda request: request.index)
    if not requests or requests[-1].intended_ns is None:
        return None
    delay_s = (requests[-1].submitted_ns - requests[-1].intended_ns) / NS_PER_S
    quarter = -(-len(requests) // 4)
    took_s = [since_arrival_s(request, request.finished_ns) for request in requests]
    early_s = [each_s for each_s in took_s[:quarter] if each_s is not None]
    late_s = [duration_s if each_s is None else each_s for each_s in took_s[-quarter:]]
    growth_s = median(late_s) - (median(early_s) if early_s else 0.0)
    return max(delay_s, growth_s) / duration_s


def backlog_slope(run_pass: PassRecord) -> float | None:
    """Return how fast the requests' delay behind their intended arrival grows, s/s.

    The larger of two slopes (least squares): that of the delay before a request enters the engine, and that of its
    latency, since an engine with room for all requests lets them wait inside. None without a schedule, and where all
    intended arrivals are at one instant.
    """
    if not is_scheduled(run_pass):
        return None
    slopes = []
    for name in ("submitted_ns", "finished_ns"):
        pairs = [(request.intended_ns, getattr(request, name)) for request in run_pass.requests]
        intended_ns, reached_ns = np.array([pair for pair in pairs if None not in pair], np.int64).reshape(-1, 2).T
        since_s = (intended_ns - intended_ns[:1]) / NS_PER_S
        if len(since_s) and np.ptp(since_s) > 0:
            slopes.append(float(np.polyfit(since_s, (reached_ns - intended_ns) / NS_PER_S, 1)[0]))
    return max(slopes, default=None)


def arrived_ns(request: RequestRecord) -> int:
    """Return the intended arrival where there was one, else the submission."""
    return request.submitted_ns if request.intended_ns is None else request.intended_ns


def since_arrival_s(request: RequestRecord, instant_ns: int | None) -> float | None:
    """Return the time from a request's arrival to an instant, s; None without the instant."""
    return None if instant_ns is None else (instant_ns - arrived_ns(request)) / NS_PER_S


def tpot_s(request: RequestRecord) -> float | None:
    """Return the mean time per output token after the first, in seconds; None with fewer than two tokens."""
    first_ns, finished_ns, tokens = request.first_token_ns, request.finished_ns, request.output_tokens
    if first_ns is None or finished_ns is None or tokens is None or tokens < 2:
        return None
    return (finished_ns - first_ns) / NS_PER_S / (tokens - 1)


def inter_token_latency(measured: Measured) -> dict[str, Any]:
    """Return `itl` of the tokens that came in the headline's window, or in `itl_reason` why there is none.

    Where the engine does not tell its steps, or drafts tokens, gaps are those between each request's tokens as the
    runner saw them; tokens of one answer came together.

    Else: an engine decodes one token for each running request in each step, so a token's gap is the time
    between the ends of its step and of the step before. Where it lets running requests wait, or works on several
    batches in turn, these gaps do not add up to the requests' times from the first to the last token of whole passes,
    and there is no figure.
    """
    passes, edges_ns = measured.pass_records, [(part.start_ns or 0, part.end_ns or 0) for part in measured.headline]
    parts = list(zip(passes, edges_ns, strict=True))
    if not all(len(each.steps.decoded_tokens) and each.drafted_tokens is None for each in passes):
        seen_s = list[float]()
        for request, edges in ((request, edges) for each, edges in parts for request in each.requests):
            gaps_ns = np.array(request.token_gaps_ns or (), dtype=np.int64)
            at_ns = (request.first_token_ns or 0) + np.cumsum(gaps_ns)
            seen_s += (gaps_ns[slice(*np.searchsorted(at_ns, edges, "right"))] / NS_PER_S).tolist()
        return {"itl": quantiles(seen_s), "itl_reason": None if seen_s else "the engine does not report its steps"}
    if any(run_pass.has_replicas for run_pass in passes):
        return {"itl_reason": "the steps of several engines overlap"}
    gaps_s = np.concatenate([np.diff(run_pass.steps.end_ns) for run_pass in passes]) / NS_PER_S
    tokens = np.concatenate([run_pass.steps.decoded_tokens[1:] for run_pass in passes])
    known = [(each.first_token_ns, each.finished_ns) for run_pass in passes for each in run_pass.requests]
    waited_s = sum((finished_ns - first_ns) / NS_PER_S for first_ns, finished_ns in known if first_ns and finished_ns)
    if not tokens.any() or not waited_s:
        return {"itl_reason": "no token was decoded after a first one"}
    if abs(off := float(gaps_s @ tokens) / waited_s - 1) > MAX_GAPS_OFF:
        return {"itl_reason": f"gaps between steps differ from those between a request's tokens by {off:+.0%} in all"}
    inside = [(each.steps.end_ns[1:] > start) & (each.steps.end_ns[1:] <= end) for each, (start, end) in parts]
    counted = tokens * np.concatenate(inside)
    return {"itl": quantiles(gaps_s[counted > 0], counted[counted > 0])}


def quantiles(values: Iterable[float | None], counts: NDArray[np.int64] | None = None) -> Quantiles | None:
    """Return the distribution of the values that are not None, in seconds; None without such values.

    Args:
        counts: How often each value counts, where none is None.
    """
    array = np.array([value for value in values if value is not None], dtype=np.float64)
    if array.size == 0:
        return None
    how: Any = {} if counts is None else {"weights": counts, "method": "inverted_cdf"}
    p50, *tail = (float(value) for value in np.quantile(array, [0.5, *(share for share, _ in TAIL)], **how))
    count = int(array.size if counts is None else counts.sum())
    p90, p95, p99 = (value if count >= least else None for value, (_, least) in zip(tail, TAIL, strict=True))
    mean_s = float(np.average(array, weights=counts))
    return Quantiles(count=count, mean_s=mean_s, p50_s=p50, p90_s=p90, p95_s=p95, p99_s=p99, max_s=float(array.max()))
