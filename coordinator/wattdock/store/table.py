"""The tidy table of results, a `Row` per result: lists, exports, SQL, charts and papers read it.

A new column is one more field of `Row`, with its place in an `ExperimentResult`; `TABLES` says which tables show it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

from wattdock.analysis import Audit, statistics
from wattdock.config import Split
from wattdock.values import known_max

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from wattdock.analysis import ExperimentResult

# Columns of the ends of a figure's interval.
ENERGY_ENDS = tuple(f"energy_per_output_token_{part}_j" for part in ("low", "high"))
SPEED_ENDS = tuple(f"output_tokens_per_s_{part}" for part in ("low", "high"))


class Column(NamedTuple):
    """How a column is read and shown.

    Attributes:
        place: Dotted name in an `ExperimentResult`; empty where `Row.of` computes the value.
        heading: The column's name in tables for people.
        form: How people read its values: a format specification, "seconds", or "file name".
    """

    place: str = ""
    heading: str = ""
    form: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result in the table; None where the result does not say.

    Attributes:
        name: The experiment's name, or what it is: backend, model and load.
        gpus: How many GPUs of which name were used.
        model: The model's name as measured, else as configured.
        energy_boundary: What joules and watts cover: "gpu_boards", or "module" with a superchip's CPU and memory.
        headline_window: Which part of each pass J/token, tokens/s and mean W are of: "drained" or "steady_state".
        energy_per_output_token_low_j, energy_per_output_token_high_j: Ends of the 95 % interval, from three restarts
            on; speed has such columns, too.
        requests_per_s, energy_per_request_j: Of the requests whose first token came in the headline's window; without
            interval.
        ttft_p50_s, ttft_p95_s: Of arrivals in the headline's window.
        tpot_p50_s, tpot_p95_s, e2e_p50_s, e2e_p95_s: Of arrivals in its first half.
        itl_p50_s, itl_p99_s: Of the tokens that came in the headline's window.
        energy_per_request_met_j, energy_per_output_token_met_j: All joules of the headline's window ÷ requests that met
            every limit of `slo`, ÷ their output tokens.
        prompts: Where they come from: bundled, synthetic, or a file.
        parallelism: How the model was spread over GPUs: "one GPU", "TP=2", …; null without a GPU.
        energy_per_unit_j, units_per_s, unit, work: Of a command: joules and speed by its unit of work, and how many of
            these. A command has no tokens, requests and prompts, and an engine has none of these four.
        input_tokens: Mean length of the prompts sent.
        max_output_tokens: Limit of a request's output tokens; the mean where limits are drawn, or are those of a file.
        score, energy_per_correct_j: Of all answers to `quality:`, from 0 to 1, and joules of all of them ÷ right ones.
        answers_cut: How many of these answers reached `quality.max_output_tokens`: with many, the score is a lower
            bound.
        cpu_others_share: Share of the runner's CPUs that others used, 0 to 1, in the pass where it is largest.
        disturbed: What showed that others used the CPUs (more than 10 % of them) or the GPUs in a pass; null where
            nothing did.
        reason: Why there is no result, or no joules, or why it may not be published.
        superseded: A later attempt of the same study replaces it.
        analysed_by: Which other version of wattdock figures and verdict are of; `again` makes them this one's.
    """

    folder: Annotated[str, Column(heading="folder", form="file name")]
    started_utc: Annotated[datetime, Column(heading="started (UTC)", form="%Y-%m-%d %H:%M")]
    name: Annotated[str, Column(heading="experiment")]
    status: Annotated[str, Column("status", "status")]
    backend: Annotated[str, Column("config.backend", "backend")]
    model: Annotated[str, Column(heading="model")]
    revision: Annotated[str | None, Column("environment.model.revision")]
    weights: Annotated[str | None, Column("environment.model.weights")]
    framework_version: Annotated[str | None, Column("environment.runner.framework_version")]
    launcher: Annotated[str | None, Column("environment.launcher")]
    gpus: Annotated[str | None, Column(heading="GPU")]
    gpu_count: Annotated[int | None, Column("environment.gpu_count", "GPUs")]
    parallelism: Annotated[str | None, Column(heading="split")]
    arrival: Annotated[str | None, Column("config.workload.arrival")]
    rate_per_s: Annotated[float | None, Column("config.workload.rate_per_s")]
    batch_size: Annotated[int | None, Column("config.workload.batch_size", "batch")]
    prompts: Annotated[str | None, Column("environment.dataset", "prompts")]
    input_tokens: Annotated[float | None, Column(heading="tokens in", form=",.0f")]
    max_output_tokens: Annotated[int | None, Column("config.workload.max_output_tokens", "tokens out (limit)", ",")]
    restarts: Annotated[int | None, Column("config.repeats.restarts", "restarts")]
    passes: Annotated[int | None, Column("config.repeats.passes", "passes")]
    duration_s: Annotated[float | None, Column("performance.duration_s")]
    requests: Annotated[int | None, Column("performance.requests", "requests", ",")]
    prompt_tokens: Annotated[int | None, Column("performance.prompt_tokens")]
    output_tokens: Annotated[int | None, Column("performance.output_tokens", "output tokens", ",")]
    cached_prompt_share: Annotated[
        float | None, Column("performance.cached_prompt_share", "prompt from a cache", ".1%")
    ]
    drafts: Annotated[str | None, Column("performance.drafts.text", "drafts")]
    output_tokens_per_s: Annotated[float | None, Column("performance.output_tokens_per_s", "output tokens/s", ",.1f")]
    output_tokens_per_s_low: float | None
    output_tokens_per_s_high: float | None
    requests_per_s: Annotated[float | None, Column("performance.requests_per_s")]
    ttft_p50_s: Annotated[float | None, Column("performance.ttft.p50_s", "TTFT p50", "seconds")]
    ttft_p95_s: Annotated[float | None, Column("performance.ttft.p95_s", "TTFT p95", "seconds")]
    tpot_p50_s: Annotated[float | None, Column("performance.tpot.p50_s", "TPOT p50", "seconds")]
    tpot_p95_s: Annotated[float | None, Column("performance.tpot.p95_s", "TPOT p95", "seconds")]
    e2e_p50_s: Annotated[float | None, Column("performance.e2e.p50_s", "end to end p50", "seconds")]
    e2e_p95_s: Annotated[float | None, Column("performance.e2e.p95_s", "end to end p95", "seconds")]
    itl_p50_s: Annotated[float | None, Column("performance.itl.p50_s", "ITL p50", "seconds")]
    itl_p99_s: Annotated[float | None, Column("performance.itl.p99_s", "ITL p99", "seconds")]
    slo_met_share: Annotated[float | None, Column("goodput.share_met", "met SLO", ".1%")]
    requests_met_per_s: Annotated[float | None, Column("goodput.requests_met_per_s", "goodput, requests/s", ",.3g")]
    output_tokens_met_per_s: Annotated[float | None, Column("goodput.output_tokens_met_per_s")]
    energy_boundary: Annotated[str | None, Column("energy.energy_boundary")]
    total_j: Annotated[float | None, Column("energy.total_j", "J", ",.1f")]
    timing_j: Annotated[float | None, Column("energy.timing_j")]
    energy_per_output_token_j: Annotated[float | None, Column("budget.energy_per_unit_j", "J/output token", "#.4g")]
    energy_per_unit_j: Annotated[float | None, Column(heading="J/unit", form="#.4g")] = None
    energy_per_unit_low_j: Annotated[float | None, Column(heading="J/unit from", form="#.4g")] = None
    energy_per_unit_high_j: Annotated[float | None, Column(heading="to", form="#.4g")] = None
    units_per_s: Annotated[float | None, Column(heading="units/s", form=",.4g")] = None
    unit: Annotated[str | None, Column(heading="unit")] = None
    work: Annotated[int | None, Column(heading="units", form=",")] = None
    headline_window: Annotated[str | None, Column("energy.windows.headline", "window")]
    energy_per_output_token_low_j: Annotated[float | None, Column(heading="J/output token from", form="#.4g")]
    energy_per_output_token_high_j: Annotated[float | None, Column(heading="to", form="#.4g")]
    energy_per_output_token_u: Annotated[float | None, Column("budget.expanded", "relative half width", ".2%")]
    energy_per_request_j: Annotated[float | None, Column("energy.energy_per_request_j")]
    energy_per_request_met_j: Annotated[float | None, Column("goodput.energy_per_request_met_j")]
    energy_per_output_token_met_j: Annotated[float | None, Column("goodput.energy_per_output_token_met_j")]
    mean_power_w: Annotated[float | None, Column("energy.mean_power_w", "mean W", ",.0f")]
    mean_hbm_power_w: Annotated[float | None, Column("energy.mean_hbm_power_w", "mean HBM W", ",.0f")]
    score: Annotated[float | None, Column("quality.overall.score", "score", ".3f")] = None
    score_error: Annotated[float | None, Column("quality.overall.score_error", "score's standard error", ".3f")] = None
    energy_per_correct_j: Annotated[
        float | None, Column("quality.overall.energy_per_correct_j", "J/correct answer", "#.4g")
    ] = None
    energy_per_correct_low_j: Annotated[
        float | None, Column("quality.overall.interval.low", "J/correct from", "#.4g")
    ] = None
    energy_per_correct_high_j: Annotated[float | None, Column("quality.overall.interval.high", "to", "#.4g")] = None
    answers_cut: Annotated[int | None, Column("quality.overall.cut", "answers cut", ",")] = None
    nearest_limit: Annotated[str | None, Column("compute.roofline.nearest_limit", "nearest limit")]
    roofline_time_ratio: Annotated[float | None, Column("compute.roofline.time_ratio", "time ÷ least", ".3g")]
    cpu_others_share: Annotated[float | None, Column(heading="CPUs used by others", form=".0%")]
    disturbed: Annotated[str | None, Column(heading="disturbed by others")]
    publishable: Annotated[bool | None, Column("audit.publishable", "publishable")]
    reason: Annotated[str | None, Column(heading="reason")]
    error_cause: Annotated[str | None, Column("error.cause")]
    study_id: Annotated[str | None, Column("study.study_id", "study")]
    node: Annotated[str | None, Column("environment.job.node", "node")]
    job: Annotated[str | None, Column("environment.job.id", "job")]
    attempt: Annotated[int | None, Column("study.attempt")]
    superseded: bool
    analysed_by: Annotated[str | None, Column(heading="analysed by")]
    experiment_id: Annotated[str, Column("experiment_id")]
    schema_version: Annotated[int, Column("schema_version")]

    @classmethod
    def of(cls, result: ExperimentResult, folder: Path, analysed_by: str | None = None) -> Row:
        """Return the row of a result in `folder`; only `in_order` knows whether it is superseded."""
        environment = result.environment
        energy_of, energy = result.energy, result.energy_figure
        gpu_counts = Counter(environment.gpu_names if environment else ())
        started, speed = datetime.fromisoformat(result.started_utc), result.performance
        unpublished = result.audit.summary if result.audit and not result.audit.publishable else None
        prompt_tokens, requests = (speed.prompt_tokens, speed.requests) if speed else (None, None)
        computed: dict[str, Any] = {
            "folder": str(folder),
            "started_utc": started.astimezone(UTC).replace(tzinfo=None) if started.tzinfo else started,
            "name": result.config.label,
            "model": environment.model.name if environment else result.config.model.label,
            "gpus": ", ".join(f"{count} × {name}" for name, count in gpu_counts.items()) or None,
            "parallelism": Split.of(environment.runner.parallelism).label
            if environment and environment.gpu_count
            else None,
            "max_output_tokens": (limit := result.request_tokens[1]) and round(limit),
            "input_tokens": prompt_tokens / requests if prompt_tokens is not None and requests else None,
            "cpu_others_share": known_max(part.cpu_others_share for part in energy_of.passes) if energy_of else None,
            "disturbed": Audit.disturbed_by(result.audit.checks) if result.audit else None,
            "reason": (result.error and result.error.message) or (energy_of and energy_of.reason) or unpublished,
            "superseded": False,
            "analysed_by": analysed_by,
            **dict(zip(ENERGY_ENDS, statistics.value_and_ends(energy)[1:], strict=True)),
            **dict(zip(SPEED_ENDS, statistics.value_and_ends(result.speed_figure)[1:], strict=True)),
        }
        # A part of the result on the way may be null.
        value_at: Any = partial(reduce, lambda part, name: part and getattr(part, name))
        values = {name: value_at(path, result) for name, path in PATHS.items()} | computed
        if result.config.command:
            values |= dict.fromkeys(OF_ENGINES)
            ends = ("energy_per_unit_j", "energy_per_unit_low_j", "energy_per_unit_high_j")
            values |= dict(zip(ends, statistics.value_and_ends(energy), strict=True))
            values |= {"unit": result.config.unit, "work": result.work and result.work.count}
            values["units_per_s"] = speed and speed.output_tokens_per_s
        return cls(**values)

    @staticmethod
    def table(rows: Sequence[Row]) -> pa.Table:
        """Return rows as an Arrow table."""
        return _arrow(Row.types(), [vars(row) for row in rows])

    @staticmethod
    def types() -> dict[str, type]:
        """Return the type of each column's values, None aside."""
        return {name: next(iter(get_args(hint)), hint) for name, hint in get_type_hints(Row).items()}


_HINTS = get_type_hints(Row, include_extras=True)
COLUMNS: dict[str, Column] = {
    name: next(iter(getattr(hint, "__metadata__", ())), Column()) for name, hint in _HINTS.items()
}
PATHS = {name: column.place.split(".") for name, column in COLUMNS.items() if column.place}
# Columns, in order, of `results list`, of `show` of several results, of a report's summary and of a paper's table. The
# figures of a command stand beside those of an engine.
TABLES: dict[Literal["list", "show", "page", "paper"], list[str]] = {
    "list": """
        folder status energy_per_output_token_j energy_per_unit_j unit output_tokens_per_s units_per_s analysed_by
        batch_size name study_id publishable model gpus parallelism prompts energy_per_unit_low_j energy_per_unit_high_j
        energy_per_output_token_low_j energy_per_output_token_high_j cpu_others_share started_utc backend disturbed
        reason
    """.split(),
    "show": """
        name energy_per_output_token_j energy_per_unit_j unit output_tokens_per_s units_per_s analysed_by status
        gpu_count batch_size input_tokens max_output_tokens output_tokens work mean_power_w score
        energy_per_correct_j answers_cut
    """.split(),
    "page": """
        energy_per_output_token_j energy_per_unit_j unit analysed_by headline_window output_tokens_per_s units_per_s
        mean_power_w mean_hbm_power_w slo_met_share requests_met_per_s energy_per_output_token_met_j nearest_limit
        roofline_time_ratio ttft_p50_s tpot_p50_s itl_p50_s output_tokens drafts work batch_size input_tokens
        max_output_tokens restarts gpus backend model cached_prompt_share score energy_per_correct_j answers_cut
    """.split(),
    "paper": """
        name backend model gpu_count batch_size input_tokens max_output_tokens energy_per_output_token_j
        energy_per_unit_j unit output_tokens_per_s units_per_s publishable
    """.split(),
}
# Columns that a command has none of: what it was sent, and what is counted in tokens or requests.
OF_ENGINES = (
    *("arrival", "rate_per_s", "batch_size", "prompts", "max_output_tokens", "passes", "requests", "requests_per_s"),
    *("output_tokens", *SPEED_ENDS, "output_tokens_per_s", *ENERGY_ENDS, "energy_per_output_token_j"),
)
# The table of measured passes: columns of a result's `energy.passes`, behind the folder and the experiment.
PASS_COLUMNS: dict[str, type] = {
    **dict.fromkeys(("folder", "experiment_id"), str),
    **dict.fromkeys(("restart", "pass"), int),
    "duration_s": float,
    "output_tokens": int,
    **dict.fromkeys(("total_j", "timing_j", "measured_per_output_token_j"), float),
    "reason": str,
}


def replaced(rows: Iterable[Row]) -> set[str]:
    """Return the folders of the rows that a later attempt of the same study replaces."""
    attempts = [(row, row.attempt) for row in rows if row.study_id is not None and row.attempt is not None]
    latest: dict[tuple[str | None, str], int] = {}
    for row, attempt in attempts:
        latest[row.study_id, row.experiment_id] = max(attempt, latest.get((row.study_id, row.experiment_id), attempt))
    return {row.folder for row, attempt in attempts if attempt < latest[row.study_id, row.experiment_id]}


def in_order(rows: Sequence[Row], folders: set[str]) -> list[Row]:
    """Return rows, the latest first, and mark those of the folders, which a later attempt replaces."""
    marked = [replace(row, superseded=True) if row.folder in folders else row for row in rows]
    return sorted(marked, key=lambda row: (row.started_utc, row.folder), reverse=True)


def passes_table(results: Iterable[tuple[Path, ExperimentResult]]) -> pa.Table:
    """Return the measured passes of results, each with its folder, as an Arrow table of `PASS_COLUMNS`."""
    rows = [
        {"folder": str(folder), "experiment_id": result.experiment_id} | measured.model_dump(by_alias=True)
        for folder, result in results
        for measured in (result.energy.passes if result.energy else ())
    ]
    return _arrow(PASS_COLUMNS, rows)


def _arrow(types: dict[str, type], rows: list[dict[str, Any]]) -> pa.Table:
    import pyarrow as pa

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), datetime: pa.timestamp("us")}
    return pa.Table.from_pylist(rows, schema=pa.schema([(name, kinds[kind]) for name, kind in types.items()]))
