"""A result as a benchmark report of llm-d.

Source: llm-d/llm-d-benchmark, llmdbenchmark/analysis/benchmark_report/br_v0_2_1_json_schema.json (Apache 2.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.text import json_text

if TYPE_CHECKING:
    from wattdock.forms.facts import Facts

# Where our quantiles stand in theirs.
QUANTILES = {"mean_s": "mean", "p50_s": "p50", "p90_s": "p90", "p95_s": "p95", "p99_s": "p99", "max_s": "max"}


def written(facts: Facts) -> str:
    """Return the report; joules per token have no field of their own there, so they stand in its description."""
    result, _, energy, environment, done, _ = facts
    latencies = {
        "time_to_first_token": (done.ttft, "s"),
        "time_per_output_token": (done.tpot, "s/token"),
        "inter_token_latency": (done.itl, "s/token"),
        "request_latency": (done.e2e, "s"),
    }
    aggregate = {
        "requests": {"total": done.requests},
        "latency": {
            name: {"units": units} | {theirs: getattr(figures, ours) for ours, theirs in QUANTILES.items()}
            for name, (figures, units) in latencies.items()
            if figures
        },
        "throughput": {
            "output_token_rate": {"units": "tokens/s", "mean": done.output_tokens_per_s},
            "request_rate": {"units": "queries/s", "mean": done.requests_per_s},
        },
    }
    report = {
        "version": "0.2.1",
        "run": {
            "uid": f"{result.experiment_id} {result.started_utc}",
            "eid": result.experiment_id,
            "time": {"start": result.started_utc},
            "description": f"{facts.figure}, {energy.mean_power_w or 0.0:.4g} W; {energy.boundary_statement} "
            f"Audit: {facts.rungs.audit}. {environment.model.name}, {environment.backend}, {facts.hardware}",
            "keywords": ["wattdock"],
        },
        "results": {"request_performance": {"aggregate": aggregate}},
    }
    return json_text(report, indent=2)
