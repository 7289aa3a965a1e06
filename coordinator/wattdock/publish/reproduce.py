"""Make a bundle's study ready to be measured again on this machine.

A bundle may come from anybody: an interpreter, a local folder or a model's own code is used only if this machine's user
says so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock.config import ExperimentConfig, ModelSpec, Study, load_study
from wattdock.errors import Cause, ConfigError, PreflightError, StoreError, os_errors_as
from wattdock.files import expanded, write_whole
from wattdock.host import GpuInventory, folders
from wattdock.inputs import resolve_model
from wattdock.launch import find_runner
from wattdock.opening import read_regular
from wattdock.owned_folder import OwnedFolder
from wattdock.publish.archive import is_safe, sha256_of
from wattdock.publish.bundle import LOCK, LOCKS, PROMPTS, STUDY, TASKS
from wattdock.publish.create import digest_of, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable

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
        model_folders: The weights of models that were local folders; each is found by its digests.
        draft_folders: Those of draft models that were local folders.
        trust_remote_code: Whether a model's own code, or the bundle's command or tasks, may run.
        say: Receives a line about what takes long.
    """

    runner_python: Path | None = None
    model_folders: tuple[Path, ...] = ()
    draft_folders: tuple[Path, ...] = ()
    trust_remote_code: bool = False
    say: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class Reproduction:
    """A bundle's experiments with the settings of this machine, to be measured.

    Attributes:
        study: The experiments.
        bundled: The bundle's successful results, analysed anew from their records, with the same settings, so that
            `reports.compare` pairs them with the results that are measured here.
        skipped: A line for each result that is not measured again, or of whose figure nothing can be decided.
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
        StoreError: The bundle's results, records or study cannot be read, or no result was measured to its end.
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
    skipped += tuple(
        f"{stored.result.config.label}: {found}" for stored in whole if (found := stored.result.config.repeats.too_few)
    )
    # Before anything else is checked.
    _require_gpus([stored.result for stored in whole])
    written, bundled, configs = load_study(bundle.folder / STUDY, {}).experiments, [], {}
    if len(written) != (count := 1 + max(bundle.manifest.results.values())):
        raise StoreError(f"{STUDY} does not hold the bundle's {count} experiments", "it was changed")
    for stored in whole:
        config = written[bundle.manifest.results[stored.folder.name]]
        _require_settings_of(stored.result, config, bundle)
        config = _config_here(config, stored.result, bundle, local, home)
        configs[config.experiment_id] = config
        # Both sides are analysed by this version; `compare` pairs results by their settings.
        anew, here = stored.analysed_again(), {"experiment_id": config.experiment_id, "config": config}
        bundled.append(replace(anew, result=anew.result.model_copy(update=here)))
    study = Study(name=f"reproduce {bundle.manifest.name}", experiments=tuple(configs.values()))
    return Reproduction(study, tuple(bundled), skipped, bundle.folder / LOCK)


def _require_settings_of(result: ExperimentResult, written: ExperimentConfig, bundle: Bundle) -> None:
    """Refuse an experiment of study.yaml that has other settings than the result that it is to be compared with."""
    source, lock = written.workload.prompts.source or "", bundle.folder / LOCK
    packed = {result.environment.dataset_sha256 or "": source} if result.environment else {}
    inputs = packed if source.startswith(f"{PROMPTS}/") else {}
    tasks = str(written.quality.folder) if written.quality else ""
    tasks = tasks if tasks.startswith(f"{TASKS}/") else ""
    settings = settings_of(result, inputs, sha256_of(lock) if lock.is_file() else None, tasks)
    if ExperimentConfig.model_validate(settings).experiment_id != written.experiment_id:
        raise StoreError(f"{STUDY} has other settings than the result of {result.config.label}", "it was changed")


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
        digest = bundled.environment.dataset_sha256 if bundled.environment else None
        prompts = prompts.model_copy(update={"source": str(_kept(bundle, prompts.source, digest, home, label))})
    packages = bundled.environment.packages if bundled.environment else None
    own_locks = find_runner(written.backend).glob("requirements-*.lock") if is_locked and packages else ()
    if is_locked and packages and packages.lock_sha256 not in map(sha256_of, own_locks):
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
    if (asked := written.quality) and asked.folder:
        here["quality"] = asked.model_copy(update={"folder": _kept_tasks(bundle, str(asked.folder), home, label)})
    if model.path:
        model = model.model_copy(update={"path": _same_folder(bundled, local, "--model-folder")})
    if written.draft and written.draft.path:
        written = written.with_draft(_same_folder(bundled, local, "--draft-folder", DRAFT))
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


def _kept(bundle: Bundle, name: str, digest: str | None, home: Path, label: str) -> Path:
    """Return a copy of the prompts that were sent, by their SHA-256, in WATTDOCK_HOME, where it outlives the bundle."""
    packed = bundle.folder / name
    is_packed = name.startswith(f"{PROMPTS}/") and is_safe(name) and packed.is_file()
    if not is_packed or sha256_of(content := read_regular(packed)) != digest:
        raise PreflightError(f"{label} needs the prompts of {name}, which are not in the bundle", "ask its authors")
    target = home / PROMPTS / f"{digest}{packed.suffix}"
    with os_errors_as(StoreError, f"cannot write {target}", "choose another WATTDOCK_HOME"):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content)
    return target


def _kept_tasks(bundle: Bundle, name: str, home: Path, label: str) -> Path:
    """Return a copy of a bundle's folder of tasks, by its content's hash, in WATTDOCK_HOME, for a later --resume."""
    try:
        if not (name.startswith(f"{TASKS}/") and is_safe(name)):
            raise FileNotFoundError
        with OwnedFolder.open(bundle.folder / name) as packed:
            files: dict[str, bytes] = {file: packed.read(file) for file in packed.files()}
    except OSError as error:
        what = f"{label} needs the tasks of {name}, which are not in the bundle"
        raise PreflightError(what, "ask its authors") from error
    cache = folders.engine_cache(home)
    target = cache / TASKS / digest_of(files) / Path(name).name
    # They may be programs: nobody else can write there.
    folders.make_own(cache)
    with os_errors_as(StoreError, f"cannot write {target}", "choose another WATTDOCK_HOME"):
        for file, content in files.items():
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            write_whole(target / file, content)
    return target


def _same_folder(bundled: ExperimentResult, local: LocalChoices, flag: str, prefix: str = "") -> Path:
    """Return the user's folder that holds the bundle's weights, whose names begin with `prefix` there."""
    model = bundled.environment.model if bundled.environment else None
    name = (model.draft if prefix else model.name) if model else "?"
    given = local.draft_folders if prefix else local.model_folders
    if not given:
        raise ConfigError(f"{bundled.config.label} used a local folder of weights, {name!r}", f"say where with {flag}")
    others, files = [], model.files if model else {}
    measured = {file.removeprefix(prefix): files[file] for file in files if file.startswith(DRAFT) == bool(prefix)}
    for folder in (expanded(path).absolute() for path in given):
        spec = ModelSpec(path=folder, trust_remote_code=model is not None and model.trust_remote_code)
        # Not by revision, which also names the hub's cache that a folder lay in.
        changes = resolve_model(spec, home=folder, progress=local.say).changes_since(measured)
        if not (model and model.revision and changes):
            return folder
        others.append(f"{flag} {folder} is not the bundle's {name!r}, {model.revision}: {changes}")
    raise PreflightError("; ".join(others), "use the latter", cause=Cause.MODEL_CHANGED)
