"""A result as a file of a task of ML.ENERGY's leaderboard, with one configuration.

Source: ml-energy/leaderboard, src/types.ts (TaskData, Configuration) and scripts/build_data.py, commit 0cd52dab.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.config import Split
from wattdock.errors import ConfigError
from wattdock.text import json_text

if TYPE_CHECKING:
    from wattdock.forms.facts import Facts

# Our quantiles of the time between tokens, by their names.
QUANTILES = {"median": "p50_s", "p90": "p90_s", "p95": "p95_s", "p99": "p99_s"}


def written(facts: Facts) -> str:
    """Return the file; interval, boundary and audit, which it has no fields for, stand under "wattdock".

    Raises:
        ConfigError: The result lacks a figure that the leaderboard's reader takes as a number.
    """
    configuration = _configuration(facts)
    if lacking := [name for name, value in configuration.items() if value is None]:
        raise ConfigError(
            f"{facts.rungs.label}: ML.ENERGY's form asks for {', '.join(lacking)}, not measured here",
            "if an older wattdock measured, write the form with --again",
        )
    told = {"figure": facts.figure, "boundary": facts.energy.boundary_statement, "audit": facts.rungs.audit}
    task = {"task": facts.environment.dataset, "task_display_name": facts.rungs.label}
    return json_text(task | {"configurations": [configuration], "wattdock": told}, indent=2)


def _configuration(facts: Facts) -> dict[str, object]:
    """Return what their file says of a run; its energy, power and speed are of one window, as theirs are."""
    result, environment, done = facts.result, facts.environment, facts.performance
    runner, compute, itl = environment.runner, result.compute, done.itl
    split, measured = Split.of(runner.parallelism), facts.budget.measured
    total, active = (compute.total_weights, compute.active_weights) if compute else (None, None)
    # Of older results, only equal counts tell: an untied input embedding is in one of them, as experts are.
    has_experts = None if compute is None else active != total and compute.has_experts
    activated = active if has_experts else total
    output_len = facts.answer_tokens if done.output_tokens and done.requests else None
    return {
        "model_id": environment.model.name,
        "nickname": environment.model.name,
        "gpu_model": ", ".join(dict.fromkeys(environment.gpu_names)),
        "num_gpus": environment.gpu_count,
        "total_params_billions": total and total / 1e9,
        "activated_params_billions": activated and activated / 1e9,
        "architecture": None if has_experts is None else "MoE" if has_experts else "Dense",
        "weight_precision": facts.precision,
        "max_num_seqs": result.config.workload.batch_size,
        "tensor_parallel": split.tensor,
        "expert_parallel": split.tensor * split.replicas if runner.engine_args.get("enable_expert_parallel") else 1,
        "data_parallel": split.replicas,
        "energy_per_token_joules": measured,
        "energy_per_request_joules": output_len and measured * output_len,
        "avg_output_len": output_len,
        "avg_power_watts": facts.energy.mean_power_w,
        "output_throughput_tokens_per_sec": done.output_tokens_per_s,
        "avg_batch_size": done.mean_in_flight,
        **{f"{name}_itl_ms": itl and getattr(itl, place) * 1e3 for name, place in QUANTILES.items()},
    }
