"""Make a bundle's study ready to be measured again on this machine.

A bundle is somebody else's: of its settings, no interpreter, no local folder and no model's own code is used unless
this machine's user says so.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wattdock.analysis import conditions
from wattdock.config import ExperimentConfig, ModelSpec, Study, load_study
from wattdock.errors import ConfigError, PreflightError, StoreError
from wattdock.execution import StudyRun, events, plan_study
from wattdock.host import inventory
from wattdock.inputs import resolve_model
from wattdock.publish.bundle import LOCK, STUDY

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.analysis import ExperimentResult
    from wattdock.publish.bundle import Bundle
    from wattdock.store import StoredResult

INSTEAD = (
    "to see how another machine does, unpack it, `wattdock run study.yaml --output-dir ..`, and use `wattdock compare`"
)


@dataclass(frozen=True)
class LocalChoices:
    """What only this machine's user can say.

    Attributes:
        runner_python: Interpreter that has the backend's packages already.
        model_folder: Where the weights are of a model that was a local folder.
        trust_remote_code: Whether a model's own code may run.
    """

    runner_python: Path | None = None
    model_folder: Path | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Reproduction:
    """A bundle's experiments, checked and ready to be measured by `run`.

    Attributes:
        bundled: The bundle's whole results, under the settings that they are measured with here, so that
            `reports.compare` pairs them with what `run` measures.
        skipped: A line for each result that is not measured again.
    """

    bundled: tuple[StoredResult, ...]
    run: StudyRun
    skipped: tuple[str, ...]


def prepare_reproduction(
    bundle: Bundle, local: LocalChoices, *, output_dir: Path, home: Path, resume: bool, emit: events.Emit
) -> Reproduction:
    """Return what can be measured again, everything checked that needs no runner.

    Args:
        home: WATTDOCK_HOME; files of prompts are kept below it.
        resume: Go on with a reproduction that was begun.

    Raises:
        ConfigError: Something in the bundle needs the user's word first.
        PreflightError: This machine has not its GPUs, images or model; nothing was started.
        StoreError: The bundle's results or study cannot be read, or no result is whole.
    """
    rows = bundle.results()
    whole = [row for row in rows if row.result.status == "ok" and row.result.environment]
    if not whole:
        raise StoreError(f"{bundle.manifest.name} holds no experiment that was measured whole; nothing to reproduce")
    skipped = tuple(
        f"{_label(row.result)} is not measured again: it is {row.result.status} in the bundle"
        for row in rows
        if row not in whole
    )
    _require_gpus([row.result for row in whole])
    written = _experiments(bundle)
    bundled, configs = [], {}
    for row in whole:
        config = _config_here(written[bundle.manifest.results[row.folder.name]], row.result, bundle, local, home)
        configs[config.experiment_id] = config
        # Paired with what is measured here by these settings, which say what "auto" was.
        here = {"experiment_id": config.experiment_id, "config": config.model_dump(mode="json")}
        bundled.append(replace(row, result=row.result.model_copy(update=here)))
    study = Study(name=f"reproduce {bundle.manifest.name}", experiments=tuple(configs.values()))
    plans = plan_study(study, output_dir=output_dir, home=home, emit=emit, lock=bundle.folder / LOCK)
    return Reproduction(
        tuple(bundled), StudyRun(study, plans, output_dir=output_dir, home=home, resume=resume), skipped
    )


def _label(result: ExperimentResult) -> str:
    return conditions.labels([result])[0]


def _require_gpus(results: list[ExperimentResult]) -> None:
    """See first of all that the GPUs are here: nothing else matters without them."""
    wanted: Counter[str] = Counter()
    for result in results:
        wanted |= Counter(result.environment.gpu_names if result.environment else ())
    found = inventory()
    here = Counter(gpu.name for gpu in found.gpus)
    if wanted - here:
        seen = _counts(here) or f"no GPU ({found.reason})"
        raise PreflightError(f"the bundle was measured on {_counts(wanted)}; this machine has {seen}; {INSTEAD}")


def _counts(names: Counter[str]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in sorted(names.items()))


def _experiments(bundle: Bundle) -> tuple[ExperimentConfig, ...]:
    """Return what study.yaml holds, one experiment for each position that the manifest names."""
    experiments = load_study(bundle.folder / STUDY, {}).experiments
    if len(experiments) != (count := 1 + max(bundle.manifest.results.values())):
        raise StoreError(f"{STUDY} does not hold the bundle's {count} experiments; wattdock did not write it so")
    return experiments


def _config_here(
    written: ExperimentConfig, before: ExperimentResult, bundle: Bundle, local: LocalChoices, home: Path
) -> ExperimentConfig:
    """Return an experiment of study.yaml as it is measured here."""
    prompts, model = written.workload.prompts, written.model
    if prompts.source and prompts.file:
        kept = str(_kept_prompts(prompts.source, before, bundle, home))
        prompts = prompts.model_copy(update={"source": kept})
    if model.trust_remote_code and not local.trust_remote_code:
        raise ConfigError(
            f"{_label(before)} runs the model's own code; read it, then allow it with --trust-remote-code"
        )
    if model.path:
        model = model.model_copy(update={"path": _model_folder(before, local)})
    workload = written.workload.model_copy(update={"prompts": prompts})
    return written.model_copy(update={"runner_python": local.runner_python, "model": model, "workload": workload})


def _model_folder(before: ExperimentResult, local: LocalChoices) -> Path:
    """Return the folder of weights that the user named, which must be those that the bundle was measured with."""
    wanted = before.environment.model if before.environment else None
    named = wanted.name if wanted else "?"
    if local.model_folder is None:
        raise PreflightError(
            f"{_label(before)} used a local folder of weights, {named!r}: say where it is with --model-folder"
        )
    folder = local.model_folder.expanduser().absolute()
    found = resolve_model(ModelSpec(path=folder), home=folder, progress=lambda _: None).revision
    if wanted and wanted.revision not in (None, found):
        said = f"is {found}, the bundle's {named!r} is {wanted.revision}; find that one"
        raise PreflightError(f"--model-folder {folder}: {said}")
    return folder


def _kept_prompts(source: str, before: ExperimentResult, bundle: Bundle, home: Path) -> Path:
    """Copy a file of prompts to where it outlives an unpacked bundle, named by its content."""
    digest = next((digest for digest, name in bundle.manifest.prompts.items() if name == source), None)
    if digest is None:
        raise PreflightError(f"{_label(before)} took prompts from a file that is not in the bundle; ask its authors")
    target = home / "prompts" / f"{digest}.jsonl"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.folder / source, target)
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror or error}; choose another WATTDOCK_HOME") from error
    return target
