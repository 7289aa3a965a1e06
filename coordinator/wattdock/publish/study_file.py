"""The settings of a bundle's experiments, as a study file that can be run as it is. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from wattdock.config import NOT_IDENTITY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock.analysis import ExperimentResult

Settings = dict[str, Any]


def study_document(
    name: str, results: Mapping[str, ExperimentResult], prompt_files: Mapping[str, str]
) -> dict[str, Any]:
    """Return the study, each different experiment once; of one that was measured with two commits, both are.

    Args:
        results: By folder.
        prompt_files: Hash of a prompt file → its place in the bundle.
    """
    experiments = {}
    for one in results.values():
        settings = pinned_settings(one, prompt_files)
        identity = {key: value for key, value in settings.items() if key not in NOT_IDENTITY}
        experiments[one.experiment_id, json.dumps(identity, sort_keys=True)] = settings
    return {"name": name, "experiments": list(experiments.values())}


def study_text(document: Settings) -> str:
    """Return study.yaml."""
    return yaml.safe_dump(document, sort_keys=False)


def pinned_settings(result: ExperimentResult, prompt_files: Mapping[str, str]) -> Settings:
    """Return a result's settings with what was found out when it ran: the model's commit, the place of its prompts.

    What only its machine had is left out: an interpreter's path, and GPUs by index or UUID become their number.
    """
    settings: Settings = {key: value for key, value in result.config.items() if key != "runner_python"}
    seen = result.environment
    if seen is None:
        return settings
    if seen.model.kind == "hub" and seen.model.revision:
        settings["model"] = settings["model"] | {"revision": seen.model.revision}
    if place := prompt_files.get(seen.dataset_sha256 or ""):
        prompts = settings["workload"]["prompts"] | {"source": place}
        settings["workload"] = settings["workload"] | {"prompts": prompts}
    if isinstance(settings.get("gpus"), list):
        settings["gpus"] = {"count": len(settings["gpus"])}
    return settings
