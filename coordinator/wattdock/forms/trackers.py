"""Results in an experiment tracker: MLflow, or Weights & Biases.

A tracker's library starts threads and processes, so it is imported only after everything was measured.
"""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from wattdock.analysis import conditions
from wattdock.errors import ConfigError
from wattdock.secrets import withheld
from wattdock.store import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock.store import StoredResult


def tracker(target: str, warn: Callable[[str], None]) -> Callable[[Sequence[StoredResult]], None]:
    """Return a function that logs results to "mlflow:URI" or "wandb:PROJECT".

    Args:
        warn: Takes a line about a result that could not be logged; nothing is raised then.

    Raises:
        ConfigError: The target is neither.
        ModuleNotFoundError: The tracker's library is not installed.
    """
    kind, _, place = target.partition(":")
    if kind not in TRACKERS or not place:
        raise ConfigError(f"--log-to {withheld(target)}: no tracker", "write mlflow:URI or wandb:PROJECT")
    if kind == "mlflow" and (scheme := urlsplit(place).scheme) not in ("", "file", "http", "https"):
        raise ConfigError(f"--log-to mlflow:{scheme}:…: not supported", "name an HTTP server or a folder")
    if find_spec(kind) is None:
        raise ModuleNotFoundError(name=kind)

    def log(results: Sequence[StoredResult]) -> None:
        # Trackers print addresses of runs, and standard output may hold a document in JSON.
        with redirect_stdout(sys.stderr):
            for stored in results:
                try:
                    TRACKERS[kind](place, stored)
                except Exception as error:  # noqa: BLE001  (a tracker may raise anything, and the result is stored)
                    # Addresses of requests make some errors long.
                    why = withheld(f"{type(error).__name__}: {error}".partition("\n")[0])[:200]
                    warn(f"wattdock: {stored.folder.name} is stored, but not logged to {kind}: {why}")

    return log


def _mlflow(uri: str, stored: StoredResult) -> None:
    # MLflow would ask a server that does not answer for four minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    import mlflow

    mlflow.set_tracking_uri(uri)
    whole = f"tags.folder = '{stored.folder.name}' AND attributes.status = 'FINISHED'"
    if mlflow.search_runs(filter_string=whole, max_results=1, output_format="list"):
        return
    with mlflow.start_run(run_name=stored.result.config.label, tags=_tags(stored)):
        mlflow.log_params(conditions.settings(stored.result.config))
        mlflow.log_metrics(_metrics(stored))


def _wandb(project: str, stored: StoredResult) -> None:
    import wandb

    entity, _, name = project.rpartition("/")
    tags, label = _tags(stored), stored.result.config.label
    # Its tags are short words; what MLflow has as tags is configuration there.
    told: dict[str, Any] = {"config": conditions.settings(stored.result.config) | tags, "tags": [tags["publishable"]]}
    # A result that is sent again is the run of this id again.
    told |= {"id": tags["folder"], "resume": "allow"}
    with wandb.init(entity=entity or None, project=name, name=label, **told) as run:
        run.summary.update(_metrics(stored))


# The name of a tracker is that of its package, too.
TRACKERS = {"mlflow": _mlflow, "wandb": _wandb}


def _metrics(stored: StoredResult) -> dict[str, float]:
    """Return every measured number of a result's row; names have units."""
    measured = {name: getattr(stored.row, name) for name in COLUMNS if not COLUMNS[name].place.startswith("config.")}
    return {name: float(value) for name, value in measured.items() if type(value) in (int, float)}


def _tags(stored: StoredResult) -> dict[str, str]:
    """Return the verdict, what the result is found again by, and what ran."""
    result, environment, audit = stored.result, stored.result.environment, stored.result.audit
    tags = {
        "publishable": "publishable" if audit and audit.publishable else "not publishable",
        "verdict": stored.verdict,
        "status": result.status,
        "experiment_id": result.experiment_id,
        "folder": stored.folder.name,
        "image_digest": environment and environment.image_digest,
        "wattdock_commit": environment and environment.wattdock_commit,
    }
    return {name: text for name, text in tags.items() if text}
