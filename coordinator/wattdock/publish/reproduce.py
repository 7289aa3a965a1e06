"""Measure a bundle's experiments again on this machine, and compare.

A bundle is somebody else's: of its settings, no interpreter, no local folder and no model's own code is used unless
this machine's user says so.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from wattdock.config import ExperimentConfig, Study, without_duplicates
from wattdock.errors import ConfigError, PreflightError, StoreError
from wattdock.execution import Run
from wattdock.host import inventory
from wattdock.inputs import check_folder, sampled_revision
from wattdock.launch.images import SETTING, lock_sha256
from wattdock.publish.manifest import LOCK, RESULTS, label_of
from wattdock.publish.reproduction import Comparison, compared, settings_here, token_comparison
from wattdock.publish.study_file import pinned_settings
from wattdock.reports import answers
from wattdock.store import REQUESTS, load_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from wattdock.analysis import ExperimentResult
    from wattdock.checks import ExecutionPlan
    from wattdock.execution import Progress, Stored
    from wattdock.publish.manifest import BundledResult
    from wattdock.publish.reproduction import Ids, Place
    from wattdock.publish.verify import Verified

INSTEAD = (
    "to see how another machine does, unpack it, `wattdock run study.yaml --output-dir ..`, and use `wattdock compare`"
)


@dataclass(frozen=True)
class Local:
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
class _Pair:
    """An experiment of the bundle, and what it is here."""

    bundled: BundledResult
    before: ExperimentResult
    config: ExperimentConfig


@dataclass
class Reproduction:
    """The experiments of an opened bundle, checked, and measured by `measure`.

    Attributes:
        skipped: A line for each result of the bundle that is not measured again.
    """

    folder: Path
    pairs: tuple[_Pair, ...]
    run: Run
    skipped: tuple[str, ...]

    def measure(self, progress: Progress) -> None:
        """Measure; raises what `Run.measure` raises."""
        for line in self.skipped:
            progress.say(line)
        self.run.measure(progress)

    def comparisons(self, *, margin: float) -> list[Comparison]:
        """Return each experiment beside what was measured of it so far."""
        measured = {one.result.experiment_id: one for one in self.run.stored}
        return [self._comparison(pair, measured.get(pair.config.experiment_id), margin) for pair in self.pairs]

    def _comparison(self, pair: _Pair, now: Stored | None, margin: float) -> Comparison:
        label, folder = pair.bundled.label, pair.bundled.folder
        if now is None:
            reason = "it was not measured; go on with --resume"
            return Comparison(
                label=label, folder=folder, reproduced=None, verdict="undecided", reason=reason, margin=margin
            )
        tokens = token_comparison(
            pair.before, now.result, _output_ids(self.folder / RESULTS / folder), _output_ids(now.folder)
        )
        folders = (folder, str(now.folder))
        return compared(label, pair.before, now.result, folders=folders, tokens=tokens, margin=margin)


def prepare(
    folder: Path, verified: Verified, local: Local, *, output_dir: Path, home: Path, resume: bool
) -> Reproduction:
    """Return what can be measured again, everything checked that needs no runner.

    Args:
        folder: The files of a bundle that was verified.
        home: WATTDOCK_HOME; files of prompts are kept below it.
        resume: Go on with a reproduction that was begun.

    Raises:
        ConfigError: Something in the bundle needs the user's word first.
        PreflightError: This machine has not its GPUs, images or model; nothing was started.
        StoreError: The bundle's results cannot be read, or none of them is whole.
    """
    pairs: list[tuple[BundledResult, ExperimentResult]] = []
    skipped: list[str] = []
    for one in verified.manifest.results:
        before = load_result(folder / RESULTS / one.folder)
        if before.status != "ok" or before.environment is None:
            skipped.append(f"{one.label} is not measured again: it is {before.status} in the bundle")
        else:
            pairs.append((one, before))
    if not pairs:
        raise StoreError(f"{verified.manifest.name} holds no experiment that was measured whole; nothing to reproduce")
    _require_gpus([before for _, before in pairs])
    prompt_files = {
        digest: str(_kept(folder / name, home / "prompts" / f"{digest}.jsonl"))
        for digest, name in verified.manifest.prompt_files.items()
    }
    lock = _kept_lock(folder / LOCK, home)
    ready = tuple(_Pair(one, before, _config(before, local, prompt_files, lock)) for one, before in pairs)
    experiments, _ = without_duplicates([one.config for one in ready])
    study = Study(name=f"reproduce {verified.manifest.name}", experiments=experiments)
    with _lock_in_use(lock if any(one.config.container.locked for one in ready) else None):
        run = Run(study, output_dir=output_dir, home=home, resume=resume)
    _require_same_gpus(ready, run.ready)
    return Reproduction(folder, ready, run, tuple(skipped))


def _require_gpus(results: Sequence[ExperimentResult]) -> None:
    """See first of all that the GPUs are here: nothing else matters without them."""
    wanted: Counter[str] = Counter()
    for result in results:
        wanted |= Counter(result.environment.gpu_names if result.environment else ())
    if not wanted:
        return
    found = inventory()
    here = Counter(gpu.name for gpu in found.gpus)
    if wanted - here:
        seen = _counted(here) or f"no GPU ({found.reason})"
        raise PreflightError(f"the bundle was measured on {_counted(wanted)}; this machine has {seen}; {INSTEAD}")


def _require_same_gpus(pairs: Sequence[_Pair], ready: Sequence[ExecutionPlan]) -> None:
    """See that the GPUs that were chosen are of the model wanted, on a machine with several."""
    chosen = {one.config.experiment_id: [gpu.name for gpu in one.gpus] for one in ready}
    for pair in pairs:
        names = pair.before.environment.gpu_names if pair.before.environment else []
        here = chosen[pair.config.experiment_id]
        if names and not set(here) <= set(names):
            wanted, got = _counted(Counter(names)), _counted(Counter(here))
            raise PreflightError(f"{pair.bundled.label} was measured on {wanted}; here it would be on {got}; {INSTEAD}")


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in sorted(names.items()))


def _config(
    before: ExperimentResult, local: Local, prompt_files: dict[str, str], lock: Path | None
) -> ExperimentConfig:
    known = None if lock is None else lock_sha256(lock)
    settings = settings_here(pinned_settings(before, prompt_files), before, lock_sha256=known)
    settings["model"] = _model(settings["model"], before, local)
    _require_prompts(settings, before, prompt_files)
    if local.runner_python:
        settings |= {"runner_python": str(local.runner_python)}
    try:
        return ExperimentConfig.model_validate(settings)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigError(
            f"{label_of(before.config)}: {where}: {problem['msg']}: this wattdock does not know that setting; "
            f"the bundle was made with {before.environment.wattdock_version if before.environment else 'another'}"
        ) from error


def _model(model: dict[str, Any], before: ExperimentResult, local: Local) -> dict[str, Any]:
    label = label_of(before.config)
    if model.get("trust_remote_code") and not local.trust_remote_code:
        raise ConfigError(f"{label} runs the model's own code; read it, then allow it with --trust-remote-code")
    if model.get("path") is None:
        return model
    name = before.environment.model.name if before.environment else "?"
    if local.model_folder is None:
        raise PreflightError(f"{label} used a local folder of weights, {name!r}: say where it is with --model-folder")
    folder = local.model_folder.expanduser().absolute()
    check_folder(folder)
    revision = before.environment.model.revision if before.environment else None
    if revision and (found := sampled_revision(folder)) != revision:
        raise PreflightError(f"--model-folder {folder}: is {found}, the bundle's {name!r} is {revision}; find that one")
    return model | {"path": str(folder)}


def _require_prompts(settings: dict[str, Any], before: ExperimentResult, prompt_files: dict[str, str]) -> None:
    source = settings["workload"]["prompts"].get("source")
    if source in (None, "bundled", "synthetic") or source in prompt_files.values():
        return
    digest = before.environment.dataset_sha256 if before.environment else None
    raise PreflightError(
        f"{label_of(before.config)} took prompts from a file with SHA-256 {digest}, which is not in the bundle; "
        "ask its authors"
    )


def _kept_lock(path: Path, home: Path) -> Path | None:
    return _kept(path, home / "locks" / f"{lock_sha256(path)}.lock") if path.is_file() else None


def _kept(path: Path, target: Path) -> Path:
    """Copy a file of the bundle to where it outlives an unpacked one, named by its content."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror or error}; choose another WATTDOCK_HOME") from error
    return target


@contextmanager
def _lock_in_use(lock: Path | None) -> Iterator[None]:
    """Let images be looked up in the bundle's lock, as with that environment variable, while they are."""
    if lock is None:
        yield
        return
    before = os.environ.get(SETTING)
    os.environ[SETTING] = str(lock)
    try:
        yield
    except PreflightError as error:
        raise PreflightError(f"{error} (the bundle's lock: {SETTING}={lock})") from error
    finally:
        if before is None:
            del os.environ[SETTING]
        else:
            os.environ[SETTING] = before


def _output_ids(folder: Path) -> dict[Place, Ids | None]:
    if not (folder / REQUESTS).is_file():
        return {}
    return {place: answer.ids for place, answer in answers(folder).items()}
