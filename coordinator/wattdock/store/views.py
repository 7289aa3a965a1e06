"""What result files look like as tables: the SQL of the views, made from one list of columns.

Views: `results` (one row each), `passes` (one row per measured pass), `requests` and `timeline` (the restarts' Parquet
files), each without what a later attempt of the same study replaces; `all_results`, `all_passes`, … hold that too.
"""

from __future__ import annotations

import json

from wattdock.analysis import ExperimentResult

# Column → DuckDB type and place in result.json.
FIELDS = {
    "schema_version": ("INTEGER", "schema_version"),
    "experiment_id": ("VARCHAR", "experiment_id"),
    "study_id": ("VARCHAR", "study.study_id"),
    "attempt": ("INTEGER", "study.attempt"),
    "status": ("VARCHAR", "status"),
    "name": ("VARCHAR", "config.name"),
    "backend": ("VARCHAR", "config.backend"),
    "revision": ("VARCHAR", "config.model.revision"),
    "arrival": ("VARCHAR", "config.workload.arrival"),
    "rate_per_s": ("DOUBLE", "config.workload.rate_per_s"),
    "batch_size": ("INTEGER", "config.workload.batch_size"),
    "input_tokens": ("INTEGER", "config.workload.prompts.input_tokens"),
    "max_output_tokens": ("INTEGER", "config.workload.max_output_tokens"),
    "restarts": ("INTEGER", "config.repeats.restarts"),
    "passes": ("INTEGER", "config.repeats.passes"),
    "framework_version": ("VARCHAR", "environment.runner.framework_version"),
    "weights": ("VARCHAR", "environment.model.weights"),
    "launcher": ("VARCHAR", "environment.launcher"),
    "gpu_count": ("INTEGER", "environment.gpu_count"),
    "duration_s": ("DOUBLE", "performance.duration_s"),
    "requests": ("BIGINT", "performance.requests"),
    "prompt_tokens": ("BIGINT", "performance.prompt_tokens"),
    "output_tokens": ("BIGINT", "performance.output_tokens"),
    "output_tokens_per_s": ("DOUBLE", "performance.output_tokens_per_s"),
    "requests_per_s": ("DOUBLE", "performance.requests_per_s"),
    "ttft_p50_s": ("DOUBLE", "performance.ttft.p50_s"),
    "ttft_p95_s": ("DOUBLE", "performance.ttft.p95_s"),
    "tpot_p50_s": ("DOUBLE", "performance.tpot.p50_s"),
    "tpot_p95_s": ("DOUBLE", "performance.tpot.p95_s"),
    "e2e_p50_s": ("DOUBLE", "performance.e2e.p50_s"),
    "e2e_p95_s": ("DOUBLE", "performance.e2e.p95_s"),
    "total_j": ("DOUBLE", "energy.total_j"),
    "timing_j": ("DOUBLE", "energy.uncertainty.timing_j"),
    "energy_per_output_token_j": ("DOUBLE", "energy.energy_per_output_token_j"),
    "energy_per_request_j": ("DOUBLE", "energy.energy_per_request_j"),
    "mean_power_w": ("DOUBLE", "energy.mean_power_w"),
    "fallback_of": ("VARCHAR", "fallback.fallback_of"),
    "error_cause": ("VARCHAR", "error.cause"),
    "publishable": ("BOOLEAN", "audit.publishable"),
    # Parts of the columns below.
    "_started": ("VARCHAR", "started_utc"),
    "_model_id": ("VARCHAR", "config.model.id"),
    "_model_shape": ("VARCHAR", "config.model.shape"),
    "_model_path": ("VARCHAR", "config.model.path"),
    "_gpu_names": ("VARCHAR", "environment.gpu_names"),
    "_error": ("VARCHAR", "error.message"),
    "_reason": ("VARCHAR", "audit.reasons[0]"),
}
DERIVED = {
    "started_utc": "try_cast(_started AS TIMESTAMPTZ) AT TIME ZONE 'UTC'",
    "model": "coalesce(_model_id, 'shape:' || _model_shape, _model_path)",
    "gpus": "array_to_string(from_json(_gpu_names, '[\"VARCHAR\"]'), ', ')",
    "reason": "coalesce(_error, _reason)",
    "superseded": "coalesce(attempt < max(attempt) OVER (PARTITION BY study_id, experiment_id), false)",
}
# What `passes` holds beside the row's folder and experiment.
PASS_FIELDS = {
    "restart": "INTEGER",
    "pass": "INTEGER",
    "duration_s": "DOUBLE",
    "output_tokens": "BIGINT",
    "total_j": "DOUBLE",
    "timing_j": "DOUBLE",
    "energy_per_output_token_j": "DOUBLE",
    "reason": "VARCHAR",
}
COUNTS = "folder IN (SELECT folder FROM results)"
READABLE = "folder IN (SELECT folder FROM fields WHERE _wrong IS NULL)"

_PATHS = ", ".join(f"'$.{place}'" for _, place in FIELDS.values())
_CASTS = ", ".join(f"try_cast(f[{at}] AS {kind}) AS {name}" for at, (name, (kind, _)) in enumerate(FIELDS.items(), 1))
_ODD = {"BOOLEAN": "neither true nor false"}
_MISFITS = " ".join(
    f"WHEN f[{at}] IS NOT NULL AND {name} IS NULL THEN '{place} is {_ODD.get(kind, 'no number')}: ' || f[{at}][:40]"
    for at, (name, (kind, place)) in enumerate(FIELDS.items(), 1)
    if kind != "VARCHAR"
)
_PUBLIC = ", ".join(name for name in FIELDS if not name.startswith("_"))
_DERIVED = ", ".join(f"{expression} AS {name}" for name, expression in DERIVED.items())
_PASS = "[{" + json.dumps(PASS_FIELDS) + "}]"
# One pass over each file's JSON whatever is asked, kept so that what is wrong with a file, null for a result that can
# be read, takes no second one. Casting in the same step takes four times as long.
VIEWS = f"""
    CREATE TEMP TABLE texts AS SELECT parse_dirpath(filename) AS folder,
        CASE WHEN json_valid(content) THEN json_extract_string(content, [{_PATHS}]) END AS f
    FROM {{source}};
    CREATE VIEW fields AS SELECT folder, {_CASTS}, CASE
        WHEN f IS NULL THEN 'is no JSON; was it cut short?'
        WHEN experiment_id IS NULL OR schema_version IS NULL THEN 'is no result'
        WHEN schema_version <> {ExperimentResult.SCHEMA_VERSION} THEN 'has schema version ' || schema_version
            || ', this wattdock reads {ExperimentResult.SCHEMA_VERSION}; use the wattdock that wrote it'
        {_MISFITS}
        END AS _wrong
    FROM texts;
    CREATE VIEW all_results AS SELECT folder, {_DERIVED}, {_PUBLIC} FROM fields WHERE _wrong IS NULL;
    CREATE VIEW results AS FROM all_results WHERE NOT superseded;
    CREATE VIEW all_passes AS SELECT folder, content->>'$.experiment_id' AS experiment_id,
        unnest(from_json(content->'$.energy.passes', '{_PASS}'), recursive := true)
    FROM (
        SELECT parse_dirpath(filename) AS folder, content FROM {{source}} WHERE json_valid(content) AND {READABLE}
    );
    CREATE VIEW passes AS FROM all_passes WHERE {COUNTS};
"""
# What is no text fails the first, for all; the second takes it for nothing, in half as much time again.
TEXT = "read_text({files})"
TEXT_OR_NOT = "(SELECT filename, try(decode(content)) AS content FROM read_blob({files}))"
