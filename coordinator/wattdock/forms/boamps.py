"""A result as a BoAmps report.

Source: Boavizta/BoAmps, model/report_schema.json and the four schemas that it names, commit 3bfefec8 (CC BY 4.0).
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from wattdock.forms.rungs import J_PER_KWH
from wattdock.text import json_text
from wattdock.version import __version__

if TYPE_CHECKING:
    from wattdock.forms.facts import Facts


def written(facts: Facts) -> str:
    """Return the report: the boards' joules in kWh, and the work that they were spent on."""
    result, energy, environment, done = facts.result, facts.energy, facts.environment, facts.performance
    runner, (joules, seconds, where) = environment.runner, facts.counted
    stage, family, unit = "inference", "text generation", "token"
    amounts = {"input": done.prompt_tokens, "output": done.output_tokens}
    algorithm: dict[str, object] = {
        "algorithmType": "llm",
        "foundationModelName": environment.model.name,
        "parametersNumber": runner.parameter_count and runner.parameter_count / 1e9,
        "framework": runner.framework,
        "frameworkVersion": runner.framework_version,
        "quantization": facts.precision and f"{facts.precision}; weights {environment.model.weights}",
    }
    if result.config.command:
        stage = family = unit = "other"
        amounts, algorithm = {"input": result.work and result.work.count}, {"algorithmType": "other"}
    report_id = str(uuid5(NAMESPACE_URL, f"{result.experiment_id} {result.started_utc}"))
    header = {"formatVersion": "1.1.0", "reportId": report_id, "reportDatetime": f"{datetime.now(UTC):%F %T}"}
    sizes = {gpu.name: gpu.vram_total_bytes and gpu.vram_total_bytes / 1e9 for gpu in environment.host_gpus}
    report = {
        "header": header,
        "task": {
            "taskStage": stage,
            "taskFamily": family,
            "taskDescription": f"{facts.rungs.label}: {facts.figure}. powerConsumption is of {where}. "
            f"{energy.boundary_statement} Audit: {facts.rungs.audit}.",
            "nbRequest": done.requests or 0,
            "algorithms": [algorithm],
            "dataset": [
                {"dataUsage": usage, "dataType": unit, "dataQuantity": count}
                for usage, count in amounts.items()
                if count
            ],
        },
        "measures": [
            {
                "measurementMethod": "wattdock",
                "version": __version__,
                "gpuTrackingMode": f"{environment.meter} {energy.source}",
                "powerConsumption": joules / J_PER_KWH,
                "measurementDuration": seconds,
                "measurementDateTime": result.started_utc[:19].replace("T", " "),
            }
        ],
        "infrastructure": {
            "infraType": "other",
            "components": [
                {"componentName": name, "componentType": "gpu", "nbComponent": count, "memorySize": sizes.get(name)}
                for name, count in Counter(environment.gpu_names).items()
            ],
        },
    }
    return json_text(_known(report), indent=2)


def _known(part: Any) -> Any:
    """Return the report without what is not known."""
    if isinstance(part, dict):
        return {name: _known(value) for name, value in part.items() if value is not None}
    return [_known(item) for item in part] if isinstance(part, list) else part
