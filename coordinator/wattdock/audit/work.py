"""Audit checks on the work: was it done, as declared, and as fast as it came? Pure."""

from __future__ import annotations

from collections import Counter
from math import sqrt

from wattdock.analysis import Audit
from wattdock.audit.check import AuditInput, Checklist, Outcome, verdict
from wattdock.text import amount, pluralize

# Largest difference in cached tokens: caches hold whole blocks, and first turns that enter together may miss them.
MAX_CACHED_DIFFERENCE = 0.05
# Largest difference of answers' lengths, and of prompt tokens per output token unless so few requests explain more by
# chance (so many standard deviations).
MAX_MIX_DIFFERENCE, CHANCE = 0.01, 3.0
# Largest correction of an open loop's J/token, which arrivals change along a curve. Source: 34 simulated traces that
# begin quietly: U held the error in 11 of 11 corrected by less, in 6 of 23 corrected by more.
MAX_OPEN_CORRECTION = 0.1
NEARER_ARRIVALS = "set a longer workload.min_duration_s, or replay a trace whose rate stays about the same"
# Fewest arrivals for a tail's 99th percentiles, and fewest that show a lag: quarters of fewer are medians of a handful.
MIN_ARRIVALS, MIN_TELLING_ARRIVALS = 500, 30
# An engine this far behind at the end served that much less than was offered: its latencies grow with the pass. The
# share sees requests that never finish and a jam near the end, the slope a slow growth long before it is 5 % of a pass.
MAX_SCHEDULE_LAG_SHARE = 0.05
MAX_CLIENT_SHARE, MAX_CLIENT_LATE_S = 0.8, 0.02
MAX_BACKLOG_SLOPE = 0.02
# Largest idle share of a fed GPU, our own judgement: fed H200s were busy 86 % of a pass and more, others 31 and 67 %.
MAX_STARVED_SHARE = 0.2
MORE_WORK = "give each step more work (more requests in flight, longer prompts), or use a faster host"

CHECKS = Checklist[AuditInput]()


@CHECKS.check(Audit.COMPLETION, question="wrong")
def completion(inputs: AuditInput) -> Outcome:
    """Whether the experiment ran to its end."""
    error = inputs.result.error
    return Outcome(verdict(failed=error is not None), error.message if error else "no failure")


@CHECKS.check("token counts", question="wrong", source="all counts of each pass's tokens; instants of its last work")
def token_counts(inputs: AuditInput) -> Outcome | None:
    """Whether all counts of a pass's tokens agree, and all of its work lies inside its span."""
    if inputs.config.command:
        return None
    passes, procedure = inputs.energy.passes, inputs.procedure
    wrong = [*procedure.token_disagreements, *procedure.undrained]
    figure = "; ".join(wrong) or f"{sum(run_pass.output_tokens for run_pass in passes):,} output tokens"
    return Outcome(verdict(failed=bool(wrong) or not passes), figure)


@CHECKS.check(
    Audit.WORK_SENT,
    question="wrong",
    threshold=f"every request as it was to be sent; answers within {MAX_MIX_DIFFERENCE:.0%} of their declared tokens; "
    f"prompt tokens per output token within {MAX_MIX_DIFFERENCE:.0%}, or {CHANCE:g} × chance if that is more; in an "
    f"open loop J/token corrected by {MAX_OPEN_CORRECTION:.0%} at most",
    source="each request's prompt (by a hash of its ids), limit and instant; requests of the headline's window",
)
def work_as_declared(inputs: AuditInput) -> Outcome | None:
    """Whether the engine was given what was declared, and gave the answers that were declared."""
    if inputs.config.command:
        return None
    if not (passes := inputs.procedure.mix):
        return Outcome("unknown", "no pass")
    mismatches = sum((Counter(run_pass.mismatches) for run_pass in passes), Counter[str]())
    if mismatches:
        figure = ", ".join(f"{pluralize(count, 'request')} with another {name}" for name, count in mismatches.items())
        return Outcome("fail", figure, remedy="this is a fault of wattdock or of the engine: please report it")
    sent = "each text has the same ids at each repeat" if passes[0].texts else "prompts, limits and order as declared"
    found = list[tuple[bool, str]]()
    if (difference := inputs.procedure.answers_difference) is None:
        early = sum(run_pass.ended_early for run_pass in passes)
        sent += f"; no lengths of answers are declared, {early:,} ended before their limit"
    else:
        found.append((abs(difference) > MAX_MIX_DIFFERENCE, f"answer tokens are {difference:+.2%} off those declared"))
    if (draw := inputs.procedure.draw_difference) is not None:
        # A file's lengths are the same in each restart.
        chance = inputs.procedure.draw_chance * (sqrt(len(passes)) if inputs.config.prompts.file else 1)
        told = f"prompt tokens per output token are {draw:+.2%} off the long run (by chance ± {chance:.2%})"
        found.append((abs(draw) > max(MAX_MIX_DIFFERENCE, CHANCE * chance), told))
    too_far = False
    if (budget := inputs.result.budget) and (entry := budget.entry(budget.MIX)):
        too_far = inputs.config.workload.loop == "open" and abs(entry.correction) > MAX_OPEN_CORRECTION
        curved = ", too far for a straight line" if too_far else ""
        found.append((too_far, f"J/token is corrected by {entry.correction:+.2%}{curved}"))
    # What is wrong comes first.
    figure = "; ".join(text for _, text in sorted(found, key=lambda part: not part[0]))
    if too_far:
        return Outcome("fail", figure, remedy=NEARER_ARRIVALS)
    if any(wrong for wrong, _ in found):
        cause, remedy = _cause_of_mix(inputs)
        return Outcome("fail", f"{figure}{cause}", remedy=remedy)
    return Outcome("pass", "; ".join(filter(None, (sent, figure))))


@CHECKS.check(
    "work of the runs",
    question="wrong",
    threshold="the same in every run, all of it in marks that can be read",
    source="what the command's processes marked",
    remedy="mark work in the script (docs/how-to/measure.md), with one seed, or count lines by --step-regex (which may "
    "find none now), or give its amount by --count",
)
def same_work(inputs: AuditInput) -> Outcome | None:
    """Whether a command did the same work in every run: nothing else declares it."""
    work = inputs.result.work
    windows = inputs.energy.windows
    if not inputs.config.command or work is None or windows is None:
        return None
    counts = [figure.output_tokens or None for figure in windows.of_headline()]
    wrong = {
        f"{work.malformed_marks:,} lines are no marks": work.malformed_marks,
        work.reason: work.reason is not None,
        f"{work.late:,} more were marked after the spans that count; mark work inside them": work.late,
        f"{pluralize(work.repeated_ranks, 'rank')} counted in several processes, such as loaders of data, or began "
        "anew: some work may be counted twice": work.repeated_ranks,
    }
    figure = " and ".join(amount(count, work.unit) for count in dict.fromkeys(counts)) + work.counted_by
    found = [text for text, is_so in wrong.items() if text and is_so]
    failed = len({*counts}) > 1 or not all(counts) or bool(found)
    return Outcome(verdict(failed=failed), "; ".join([figure, *found]))


def _cause_of_mix(inputs: AuditInput) -> tuple[str, str]:
    """Return why a mix is not the declared one, as far as it can be seen, and what to do."""
    passes = inputs.procedure.mix
    aborted, early = (sum(getattr(run_pass, name) for run_pass in passes) for name in ("aborted", "ended_early"))
    whole = inputs.energy.windows is not None and inputs.energy.windows.headline == "drained"
    if aborted:
        return f"; {pluralize(aborted, 'request')} aborted", "see runner.log"
    if early:
        return f"; early end of sequence in {pluralize(early, 'answer')}", "set workload.ignore_eos=true"
    if whole and inputs.config.workload.staggered_start:
        return "; the staggered start is in the figure", "make passes longer: workload.min_duration_s or min_requests"
    return "", "make passes longer: workload.min_duration_s; if the difference stays, please report it"


@CHECKS.check(
    "cached prompts",
    question="wrong",
    source="the engine's count per request, and prompts' hashes; a warm cache once hid a fifth of a figure",
)
def cached_prompts(inputs: AuditInput) -> Outcome | None:
    """Whether a cache served what conversations declare, and nothing where the configuration does not switch it on.

    Prompts that repeat are harmless where the engine says that no cache served them.
    """
    if inputs.config.command:
        return None
    # An engine that calls the setting otherwise has its cached tokens fail.
    declared = inputs.config.section.caches_prefixes
    threshold = "a prefix cache that was switched on" if declared else "none"
    reused = sum(run_pass.prompts_reused for run_pass in inputs.energy.passes)
    repeated = sum(run_pass.repeated_prompts for run_pass in inputs.procedure.mix)
    again = f"; {pluralize(repeated, 'request')} with a prompt that the pass had sent before" if repeated else ""
    again += f"; {pluralize(reused, 'pass', 'passes')} with prompts of earlier ones" if reused else ""
    speed = inputs.result.performance
    if speed is None or (cached := speed.cached_prompt_tokens) is None:
        return Outcome("fail" if again else "unknown", f"the engine does not tell{again}", threshold)
    figure = f"{cached:,} prompt tokens from a cache{again}"
    if (cacheable := speed.cacheable_prompt_tokens) is not None and (prompt_tokens := speed.prompt_tokens):
        share, declared_share = cached / prompt_tokens, cacheable / prompt_tokens
        threshold = f"{declared_share:.1%} as turns and shared prefix declare, ± {MAX_CACHED_DIFFERENCE:.0%} of all"
        failed = abs(share - declared_share) > MAX_CACHED_DIFFERENCE or (bool(again) and cached > 0)
        return Outcome(verdict(failed=failed), f"{figure}, {share:.1%} of all", threshold)
    if cached:
        return Outcome("info" if declared and not again else "fail", figure, threshold)
    return Outcome("pass", figure, threshold)


@CHECKS.check(
    "questions",
    threshold="the same items, task version and prompts in every restart; cut answers could not raise a score by more "
    "than its standard error",
    source="each task's version, items and the digest of its prompts as template and tokenizer made ids of them",
    remedy="keep quality.folder, the harness and the template as they are, and measure anew",
)
def same_questions(inputs: AuditInput) -> Outcome | None:
    """Whether every restart was asked the same, and had room to answer; scores are no part of the verdict on joules."""
    if (found := inputs.result.quality) is None:
        return None
    if found.failures:
        return Outcome("warn", "; ".join(found.failures))
    prompts = {task.name: (task.rendered_sha256 or "")[:12] or "encoded by the engine" for task in found.tasks}
    told = [f"{task.name} {task.version}, {task.items} items, prompts {prompts[task.name]}" for task in found.tasks]
    figure = "; ".join(told) or "no task has a score"
    if bounds := [f"{task.name}: {task.cut_text}" for task in found.tasks if task.is_bound]:
        return Outcome("warn", "; ".join([*bounds, figure]), remedy="raise quality.max_output_tokens")
    return Outcome(verdict(failed=False, known=bool(told)), figure)


@CHECKS.check(
    "serving client",
    question="wrong",
    threshold=f"its thread busy at most {MAX_CLIENT_SHARE:.0%} of the time, and late by at most "
    f"{MAX_CLIENT_LATE_S * 1000:.0f} ms and half the median gap between tokens",
    source="the client's own CPU time, and how late its loop does what is due (99th percentile), in the worst pass",
    remedy="keep other work off its CPUs, or ask for fewer requests in flight: else the figure is the client's",
)
def client_keeps_up(inputs: AuditInput) -> Outcome | None:
    """Whether an engine behind its own server waited for the client, or tokens waited to be read."""
    speed = inputs.result.performance
    if speed is None or (serving := speed.serving) is None:
        return None
    gap_s = None if speed.itl is None else speed.itl.p50_s
    most_late_s = MAX_CLIENT_LATE_S if gap_s is None else min(MAX_CLIENT_LATE_S, gap_s / 2)
    failed = serving.client_cpu_share > MAX_CLIENT_SHARE or serving.client_late_s > most_late_s
    figure = f"{serving.client_cpu_share:.0%} busy, {serving.client_late_s * 1000:.1f} ms late"
    return Outcome(verdict(failed=failed), figure)


@CHECKS.check(
    Audit.ARRIVALS_SERVED,
    question="wrong",
    threshold=f"at most {MAX_SCHEDULE_LAG_SHARE:.0%} behind, growing by at most {MAX_BACKLOG_SLOPE:g} s/s",
    source="submission and last token of each request against its intended arrival",
)
def arrivals_kept_up_with(inputs: AuditInput) -> Outcome | None:
    """Whether the engine served an open loop's arrivals as fast as they came."""
    speed = inputs.result.performance
    if speed is None or inputs.config.workload.loop != "open":
        return None
    if (share := speed.schedule_lag_share) is None or speed.offered_rate_per_s is None:
        return Outcome("unknown", "the intended arrivals of some pass are not known")
    slope, arrivals = speed.backlog_slope, speed.arrivals_min or 0
    growing = f", delay grows by {slope:.3f} s/s" if slope is not None else ""
    left_out = f"; {speed.arrivals_left_out}" if speed.arrivals_left_out else ""
    rates = f"{speed.offered_rate_per_s:.3g} requests/s offered, {speed.requests_per_s:.3g} achieved"
    figure = f"{rates}, {share:.1%} of the pass behind at its end{growing}{left_out}"
    on_time = share <= MAX_SCHEDULE_LAG_SHARE and slope is not None and slope <= MAX_BACKLOG_SLOPE
    if on_time and not left_out:
        few = f"; {arrivals} in the shortest pass, {MIN_ARRIVALS} tell a tail" if arrivals < MIN_ARRIVALS else ""
        remedy = f"set workload.min_requests={MIN_ARRIVALS}"
        return Outcome("warn" if few else "pass", figure + few, remedy=remedy)
    # One long prompt near the end delays a few arrivals as much; most of them never served is saturation.
    return Outcome(verdict(failed=bool(left_out) or arrivals >= MIN_TELLING_ARRIVALS, known=False), figure)


@CHECKS.check(
    "work for the GPUs",
    threshold=f"none of them computes in at most {MAX_STARVED_SHARE:.0%} of any pass",
    source="NVML's samples of the time in which a kernel ran, of the busiest GPU; the limit is our own judgement",
    remedy=MORE_WORK,
)
def gpus_fed(inputs: AuditInput) -> Outcome | None:
    """Whether GPUs wait for their host, whose speed and neighbours the figure then depends on; not in an open loop."""
    gpus = [gpu for gpu in inputs.result.used_gpus.values() if gpu.worst_pass_busy_share is not None]
    if not gpus or inputs.config.workload.loop == "open":
        return None
    busiest = max(gpus, key=lambda gpu: gpu.worst_pass_busy_share or 0.0)
    share = 1 - (busiest.worst_pass_busy_share or 0.0)
    limit = f" of {busiest.power_limits_w[1]:.0f}" if busiest.power_limits_w else ""
    watts = "" if busiest.mean_power_w is None else f", mean {busiest.mean_power_w:.0f}{limit} W"
    return Outcome("warn" if share > MAX_STARVED_SHARE else "info", f"idle in {share:.0%} of the worst pass{watts}")
