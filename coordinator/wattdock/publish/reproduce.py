"""Make a bundle's study ready to be measured again on this machine.

A bundle may come from anybody: an interpreter, a local folder or a model's own code is used only if this machine's user
says so.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from wattdock.config import ExperimentConfig, ModelSpec, Study, load_study
from wattdock.errors import Cause, ConfigError, PreflightError, StoreError, os_errors_as
from wattdock.files import expanded, write_whole
from wattdock.host import GpuInventory
from wattdock.inputs import resolve_model
from wattdock.launch import find_runner
from wattdock.opening import read_regular
from wattdock.publish.archive import is_safe, sha256_of
from wattdock.publish.bundle import LOCK, LOCKS, PROMPTS, STUDY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wattdock.analysis import ExperimentResult
    from wattdock.publish.bundle import Bundle
    from wattdock.store import StoredResult

# What the names of a draft model's files begin with, among those of the model.
DRAFT = "draft/"
INSTEAD = (
    "to see how another machine does, unpack it, `wattdock run study.yaml --output-dir ..`, and use `wattdock compare`"
)


@dataclass(frozen=True)
class LocalChoices:
    """Choices that only this machine's user can make.

    Attributes:
        runner_python: Python interpreter that has the backend's packages installed.
        model_folder: The weights of a model that was a local folder.
        draft_folder: Those of a draft model that was a local folder.
        trust_remote_code: Whether a model's own code, or the bundle's command, may run.
    """

    runner_python: Path | None = None
    model_folder: Path | None = None
    draft_folder: Path | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Reproduction:
    """A bundle's experiments with the settings of this machine, to be measured.

    Attributes:
        study: The experiments.
        bundled: The bundle's successful results with the same settings, so that `reports.compare` pairs them with the
            results that are measured here.
        skipped: A line for each result that is not measured again.
        lock: Lock file of the bundle's images.
    """

    study: Study
    bundled: tuple[StoredResult, ...]
    skipped: tuple[str, ...]
    lock: Path


def prepare_reproduction(bundle: Bundle, local: LocalChoices, *, home: Path) -> Reproduction:
    """Return the study of a bundle, as this machine can measure it.

    Args:
        home: WATTDOCK_HOME; files of prompts are stored below it.

    Raises:
        ConfigError: Something in the bundle needs the user's permission first.
        PreflightError: This machine lacks the GPUs, images or model; nothing was started.
        StoreError: The bundle's results or study cannot be read, or no result was measured to its end.
    """
    results = bundle.results()
    whole = [stored for stored in results if stored.result.status == "ok" and stored.result.environment]
    if not whole:
        raise StoreError(f"{bundle.manifest.name} holds no result without an error", "nothing to reproduce")
    skipped = tuple(
        f"{stored.result.config.label} is not measured again: it is {stored.result.status} in the bundle"
        for stored in results
        if stored not in whole
    )
    # Before anything else is checked.
    _require_gpus([stored.result for stored in whole])
    written, bundled, configs = load_study(bundle.folder / STUDY, {}).experiments, [], {}
    if len(written) != (count := 1 + max(bundle.manifest.results.values())):
        raise StoreError(f"{STUDY} does not hold the bundle's {count} experiments", "it was changed")
    for stored in whole:
        config = _config_here(written[bundle.manifest.results[stored.folder.name]], stored.result, bundle, local, home)
        configs[config.experiment_id] = config
        # `compare` pairs results by their settings.
        here = {"experiment_id": config.experiment_id, "config": config}
        bundled.append(replace(stored, result=stored.result.model_copy(update=here)))
    study = Study(name=f"reproduce {bundle.manifest.name}", experiments=tuple(configs.values()))
    return Reproduction(study, tuple(bundled), skipped, bundle.folder / LOCK)


def _require_gpus(results: list[ExperimentResult]) -> None:
    """Refuse a machine without the bundle's GPUs."""
    needed: Counter[str] = Counter()
    for result in results:
        needed |= Counter(result.environment.gpu_names if result.environment else ())
    machine = GpuInventory.here()
    present = Counter(gpu.name for gpu in machine.gpus)
    if needed - present:
        wanted, here = (
            ", ".join(f"{count} × {name}" for name, count in sorted(names.items())) for names in (needed, present)
        )
        here = here or f"no GPU ({machine.reason})"
        raise PreflightError(f"the bundle was measured on {wanted}; this machine has {here}", INSTEAD)


def _config_here(
    written: ExperimentConfig, bundled: ExperimentResult, bundle: Bundle, local: LocalChoices, home: Path
) -> ExperimentConfig:
    """Return an experiment of study.yaml with the settings that this machine's user chose."""
    prompts, model, label = written.workload.prompts, written.model, bundled.config.label
    if url := written.section.server_url:
        raise ConfigError(f"{label}: it measured a server that ran at {url}, which a bundle cannot start", INSTEAD)
    # Nobody holds the packages of an interpreter that is named here against a lock.
    is_locked = written.container.locked and not local.runner_python
    here: dict[str, Any] = {"runner_python": local.runner_python}
    if prompts.source and prompts.file:
        prompts = prompts.model_copy(update={"source": str(_kept(bundle, prompts.source, home, label))})
    packages = bundled.environment.packages if bundled.environment else None
    if is_locked and packages and packages.lock_sha256 not in _own_locks(written.backend):
        raise ConfigError(
            f"{label} ran the packages of {LOCKS}/{packages.lock_sha256[:16]}.lock, and {written.backend} has another",
            "read that lock, put it into a copy of the backend, and name the folder around it in WATTDOCK_RUNNERS",
            cause=Cause.RUNS_CODE,
        )
    if bundled.environment and (time_utc := bundled.environment.model.template_time_utc):
        prompts = prompts.model_copy(update={"chat_time_utc": datetime.fromisoformat(time_utc)})
    if (code := _code_in(written)) and not local.trust_remote_code:
        raise ConfigError(
            f"{label} runs {code}", "read it, then allow it with --trust-remote-code", cause=Cause.RUNS_CODE
        )
    if model.path:
        model = model.model_copy(update={"path": _same_folder(bundled, local.model_folder, "--model-folder")})
    if written.draft and written.draft.path:
        written = written.with_draft(_same_folder(bundled, local.draft_folder, "--draft-folder", DRAFT))
    here["container"] = written.container.model_copy(update={"locked": is_locked})
    workload = written.workload.model_copy(update={"prompts": prompts})
    return written.model_copy(update=here | {"model": model, "workload": workload})


def _code_in(written: ExperimentConfig) -> str:
    """Return which code an experiment would run that came with neither wattdock nor an engine; empty for none."""
    if written.command:
        return f"a command, {written.command.text}"
    if (asked := written.quality) and (asked.folder or asked.run_code):
        return f"tasks in {asked.folder}" if asked.folder else "programs that the model writes, in no container"
    return "the model's own code" if written.model.trust_remote_code else ""


def _own_locks(backend: str) -> Iterator[str]:
    """Yield the SHA-256 of each lock of packages that a backend has here."""
    for variant in ("cpu", "cuda"):
        with suppress(OSError):
            yield sha256_of(find_runner(backend) / f"requirements-{variant}.lock")


def _kept(bundle: Bundle, name: str, home: Path, label: str) -> Path:
    """Return a copy of a file of prompts, named by its content, in WATTDOCK_HOME, where it outlives the bundle.

    Raises:
        PreflightError: It is not among the bundle's prompts.
        StoreError: It cannot be written.
    """
    packed = bundle.folder / name
    if not name.startswith(f"{PROMPTS}/") or not is_safe(name) or not packed.is_file():
        raise PreflightError(f"{label} needs {name}, which is not in the bundle", "ask its authors")
    content = read_regular(packed)
    target = home / PROMPTS / f"{sha256_of(content)}{packed.suffix}"
    with os_errors_as(StoreError, f"cannot write {target}", "choose another WATTDOCK_HOME"):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content)
    return target


def _same_folder(bundled: ExperimentResult, given: Path | None, flag: str, prefix: str = "") -> Path:
    """Return the user's folder of weights, which must hold the weights that the bundle was measured with.

    Args:
        prefix: What the names of the folder's files begin with in the bundle.
    """
    model = bundled.environment.model if bundled.environment else None
    name = (model.draft if prefix else model.name) if model else "?"
    if given is None:
        raise ConfigError(f"{bundled.config.label} used a local folder of weights, {name!r}", f"say where with {flag}")
    folder = expanded(given).absolute()
    spec = ModelSpec(path=folder, trust_remote_code=model is not None and model.trust_remote_code)
    found = resolve_model(spec, home=folder, progress=lambda _: None)
    files = model.files if model else {}
    measured = {file.removeprefix(prefix): files[file] for file in files if file.startswith(DRAFT) == bool(prefix)}
    # Not by revision, which also names the hub's cache that a folder lay in.
    if model and model.revision and (changes := found.changes_since(measured)):
        raise PreflightError(
            f"{flag} {folder} is not the bundle's {name!r}, {model.revision}: {changes}",
            "use the latter",
            cause=Cause.MODEL_CHANGED,
        )
    return folder
