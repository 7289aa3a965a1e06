"""A result as a BoAmps report.

Source: Boavizta/BoAmps, model/report_schema.json and the four schemas that it names, commit 3bfefec8 (CC BY 4.0).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from wattdock.forms.rungs import J_PER_KWH
from wattdock.text import json_text
from wattdock.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock.forms.facts import Facts
    from wattdock.records import EnvironmentSnapshot

SPECIFICATION = "https://github.com/Boavizta/BoAmps/tree/main/model"


def written(facts: Facts) -> str:
    """Return the report: the boards' joules in kWh, and the work that they were spent on."""
    result, energy, environment, done = facts.result, facts.energy, facts.environment, facts.performance
    runner, model = environment.runner, environment.model
    algorithm = {
        "algorithmType": "llm",
        "foundationModelName": model.name,
        "parametersNumber": runner.parameter_count and runner.parameter_count / 1e9,
        "framework": runner.framework,
        "frameworkVersion": runner.framework_version,
        "quantization": facts.precision,
    }
    amounts = {"input": done.prompt_tokens, "output": done.output_tokens}
    is_command = result.config.command is not None
    if is_command:
        amounts = {"input": result.work.count if result.work else None}
    joules, seconds, where = facts.counted
    return json_text(
        _known(
            {
                "header": {
                    "formatVersion": "1.1.0",
                    "formatVersionSpecificationUri": SPECIFICATION,
                    "reportId": str(uuid5(NAMESPACE_URL, f"{result.experiment_id} {result.started_utc}")),
                    "reportDatetime": _time(datetime.now(UTC).isoformat()),
                    "reportStatus": "draft",
                },
                "task": {
                    "taskStage": "other" if is_command else "inference",
                    "taskFamily": "other" if is_command else "text generation",
                    "taskDescription": f"{facts.rungs.label}: {facts.figure}. powerConsumption is of {where}. "
                    f"{energy.boundary_statement} Audit: {facts.rungs.audit}.",
                    "nbRequest": done.requests or 0,
                    "algorithms": [{"algorithmType": "other"} if is_command else _known(algorithm)],
                    "dataset": [
                        {"dataUsage": usage, "dataType": "other" if is_command else "token", "dataQuantity": count}
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
                        "measurementDateTime": _time(result.started_utc),
                    }
                ],
                "software": _known({"language": "python", "version": runner.python_version}),
                "infrastructure": {"infraType": "other", "components": _components(environment)},
            }
        ),
        indent=2,
    )


def _components(environment: EnvironmentSnapshot) -> list[dict[str, object]]:
    sizes = {gpu.name: gpu.vram_total_bytes for gpu in environment.host_gpus if gpu.uuid in environment.gpu_uuids}
    return [
        _known(
            {
                "componentName": name,
                "componentType": "gpu",
                "nbComponent": environment.gpu_names.count(name),
                "memorySize": size / 1e9 if (size := sizes.get(name)) else None,
            }
        )
        for name in dict.fromkeys(environment.gpu_names)
    ]


def _known(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _time(utc: str) -> str:
    return utc[:19].replace("T", " ")
