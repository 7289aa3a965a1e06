"""Make a bundle: gather the files of results, describe them, hash them, and write one tar file.

Results are bundled byte for byte as they are stored. Logs are left out by default, and a file that holds what looks
like a key or a password is refused. Names of users, folders and hosts are not replaced; files that hold this user's or
this machine's are listed.
"""

from __future__ import annotations

import json
import os
import platform
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from wattdock.config import ExperimentConfig
from wattdock.errors import Cause, ConfigError, StoreError
from wattdock.files import BEGUN_IN, BUNDLED, JOURNAL, MANIFEST, RESULT, STUDIES, SUMS, TAR, expanded, whole_file
from wattdock.launch import find_runner
from wattdock.launch.images import lock_path
from wattdock.opening import MAX_BYTES, is_trusted, read_regular
from wattdock.output import harmless
from wattdock.owned_folder import OwnedFolder
from wattdock.publish.archive import PIECE_BYTES, Content, is_safe, opened, pack, sha256_of
from wattdock.publish.bundle import (
    LOCK,
    LOCKS,
    PROMPTS,
    README,
    STUDY,
    TASKS,
    Manifest,
    VerifiedBundle,
    verify_bundle,
)
from wattdock.reports import markdown, points_of
from wattdock.reports.wording import boundaries
from wattdock.secrets import holds_secret
from wattdock.text import from_json, json_text, sums_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.store import StoredResult

LOG_SUFFIX = ".log"
# The largest folder of tasks: more is a set of data, which is better named than packed.
MOST_TASK_BYTES = 100_000_000
TEXT_SUFFIXES = {".py", ".csv", ".json", ".jsonl", ".lock", ".log", ".txt", ".yaml"}


@dataclass(frozen=True)
class CreatedBundle(VerifiedBundle):
    """A new bundle; `identifying_files` hold a name of user, home or machine, `too_few` tell of too few restarts."""

    identifying_files: tuple[str, ...]
    too_few: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return super().as_json() | {"identifying_files": self.identifying_files}


@dataclass
class _Gathered:
    """Files by their name in the bundle.

    Attributes:
        studies: Ids of the studies whose journals are in the bundle.
        begun_in: By such an id, the folder in which the study was begun.
        inputs: SHA-256 of a file of prompts or a lock of packages, or a folder of tasks → its name in the bundle.
        missing: As in `Manifest`.
    """

    files: dict[str, Content] = field(default_factory=dict)
    studies: list[str] = field(default_factory=list)
    begun_in: dict[str, Path] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    lock_sha256: str | None = None

    def place(self, result: ExperimentResult, path: Path) -> Path:
        """Return where a path in a result's settings leads, from where its study was begun; from here if unknown."""
        study = result.study.study_id if result.study else ""
        return self.begun_in.get(study, Path()).absolute() / expanded(path)


def create_bundle(
    results: Sequence[StoredResult], out: Path | None, *, logs: bool = False, prompts: bool = True
) -> CreatedBundle:
    """Bundle stored results.

    Args:
        out: A new file that ends in .tar; None makes wattdock-NAME.tar in the current folder.
        logs: Include the runners' logs.
        prompts: Include files of prompts, and folders of tasks.

    Raises:
        ConfigError: A name cannot be one of or in a bundle, or a file holds a secret.
        StoreError: A file is missing or cannot be read, or the bundle cannot be written; nothing is left of it.
    """
    results = sorted(results, key=lambda stored: stored.folder.resolve().name)
    try:
        gathered = _gather(results, logs=logs, prompts=prompts)
        # The file's name is not in it: the same results have the same digest.
        name = f"wattdock-{(gathered.studies or [results[0].folder.resolve().name])[0]}"
        out = out or Path(f"{name}{TAR}")
        if out.suffix != TAR or out.name[0] == ".":
            raise ConfigError(f"{out.name!r} cannot be a bundle's name", f"end it in {TAR}, and begin it with no dot")
        if not out.absolute().parent.is_dir():
            raise StoreError(f"{out}: there is no folder {out.parent}", "make it, or choose another --output")
        if out.exists():
            raise StoreError(f"{out} exists, and bundles are never overwritten", "choose another name with --output")
        identifying = _identifying_files(gathered.files)
        _describe(results, name, gathered)
        sums = sums_of({file: sha256_of(content) for file, content in gathered.files.items()}).encode()
        with whole_file(out) as file:
            pack(gathered.files | {SUMS: sums}, file, top=name)
    except OSError as error:
        # The new file has a name of its own until it is whole.
        is_new = out and Path(error.filename or "").name.startswith(f".{out.name}.")
        place = out if is_new else error.filename or out
        raise StoreError(f"{place}: {error.strerror or error}", "see its owner and free space") from error
    repeats = {stored.result.config.label: stored.result.config.repeats.too_few for stored in results}
    too_few = tuple(f"{label}: {found}" for label, found in repeats.items() if found)
    return CreatedBundle(**vars(verify_bundle(out)), identifying_files=identifying, too_few=too_few)


def _gather(results: Sequence[StoredResult], *, logs: bool, prompts: bool) -> _Gathered:
    """Return the files of results, journals of studies, prompts, and the lock of images."""
    gathered, lock = _Gathered(), lock_path()
    for stored in results:
        folder = stored.folder.resolve()
        place = f"{BUNDLED}/{folder.name}"
        if any(name.startswith(f"{place}/") for name in gathered.files):
            raise ConfigError(f"two results have the name {folder.name}", "make a bundle of each")
        with stored.opened() as result:
            names = [name for name in result.files() if "/." not in f"/{name}"]
            stored.require_as_stored(names)
            gathered.files |= {
                f"{place}/{name}": result.reopenable(name) for name in names if logs or not name.endswith(LOG_SUFFIX)
            }
            _gather_journal(stored.result, gathered, result)
            _gather_inputs(stored.result, gathered, prompts=prompts, is_own=is_trusted(result.owner))
        gathered.missing += [f"a result of {name}, which the study declares" for name in stored.lacks]
    gathered.missing = [*dict.fromkeys(gathered.missing)]
    if lock.is_file():
        gathered.files[LOCK] = content = read_regular(lock, follow=True)
        gathered.lock_sha256 = sha256_of(content)
    return gathered


def _gather_journal(result: ExperimentResult, gathered: _Gathered, folder: OwnedFolder) -> None:
    """Take the journal of a result's study, if the study is of the result's owner: a result may claim any study."""
    study = result.study.study_id if result.study else None
    if study is None or study in gathered.studies or not is_safe(study):
        return
    inside = f"{STUDIES}/{study}"
    with (
        suppress(OSError, ValueError),
        OwnedFolder.open(folder.path.parent) as results,
        results.folder(inside, allow_other_owner=True) as place,
    ):
        if place.owner == folder.owner and place.is_regular(JOURNAL):
            gathered.studies.append(study)
            gathered.files[f"{BUNDLED}/{inside}/{JOURNAL}"] = place.reopenable(JOURNAL)
            with place.file(JOURNAL) as file:
                head = from_json(file.readline(MAX_BYTES))
            if isinstance(head, dict) and (begun_in := head.get(BEGUN_IN)):
                gathered.begun_in[study] = Path(os.path.normpath(results.path / str(begun_in)))


def _gather_inputs(result: ExperimentResult, gathered: _Gathered, *, prompts: bool, is_own: bool) -> None:
    """Take a result's file of prompts and its lock of packages, where each still is what the result was made with."""
    wanted: list[tuple[str, Path, str, str]] = []
    environment = result.environment
    if environment and environment.dataset_sha256 and (path := result.config.prompts.file):
        name = f"{PROMPTS}/{environment.dataset_sha256[:16]}.jsonl"
        path = gathered.place(result, path)
        wanted = [("the file of prompts with SHA-256", path, environment.dataset_sha256, name)]
    if environment and (packages := environment.packages):
        path = find_runner(environment.backend) / packages.lock
        name = f"{LOCKS}/{packages.lock_sha256[:16]}.lock"
        wanted.append(("the lock of packages with SHA-256", path, packages.lock_sha256, name))
    refused = "was another user's to name" if not is_own else ""
    asked = result.config.quality and result.config.quality.folder
    if asked and str(folder := gathered.place(result, asked)) not in gathered.inputs:
        _gather_tasks(folder, gathered, refused or "was left out" * (not prompts))
    for what, path, digest, name in wanted:
        problem = refused
        if not prompts and name.startswith(PROMPTS):
            problem = "was left out"
        try:
            if not problem and sha256_of(path) != digest:
                problem = "has changed"
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        if problem:
            gathered.missing.append(f"{what} {digest} {problem}; a rerun needs it")
        else:
            gathered.inputs[digest], gathered.files[name] = name, path


def _gather_tasks(folder: Path, gathered: _Gathered, problem: str) -> None:
    """Take a folder of tasks, unless there is a problem with it; their items tell a rerun whether it was another."""
    files, size_bytes = dict[str, Content](), 0
    try:
        with OwnedFolder.open(folder) as tasks:
            for name in tasks.files():
                if "/." not in f"/{name}" and "__pycache__/" not in name and (state := tasks.state(name)):
                    files[name], size_bytes = tasks.reopenable(name), size_bytes + state.st_size
    except OSError as error:
        problem = problem or f"cannot be read ({error.strerror})"
    if any(Path(name).name == RESULT for name in files):
        problem = problem or "holds results, too"
    if size_bytes > MOST_TASK_BYTES:
        problem = problem or f"has more than {MOST_TASK_BYTES // 1_000_000} MB"
    if problem:
        gathered.missing.append(f"the folder of tasks {folder.name} {problem}; a rerun needs it")
        return
    place = f"{TASKS}/{digest_of(files)[:16]}/{folder.name}"
    gathered.inputs[str(folder)] = place
    gathered.files |= {f"{place}/{name}": content for name, content in files.items()}


def digest_of(files: Mapping[str, Content]) -> str:
    """Return one hash of files and their names."""
    return sha256_of(sums_of({name: sha256_of(content) for name, content in files.items()}).encode())


def _identifying_files(files: dict[str, Content]) -> tuple[str, ...]:
    """Return files with this user's or machine's name or the home folder; refuse secrets, and names of no bundle."""
    names = {platform.node(), *(os.environ.get(name, "") for name in ("USER", "LOGNAME", "HOME", "HOSTNAME"))}
    escaped = "|".join(sorted(map(re.escape, names - {"", "/", "root", "localhost"})))
    pattern, found = re.compile(rf"(?<![A-Za-z0-9])(?:{escaped or '(?!)'})(?![A-Za-z0-9])"), []
    for name, content in files.items():
        if not is_safe(name):
            raise ConfigError(f"{name!r} cannot be a name in a bundle", "use letters, digits, . _ - only")
        text = ""
        if Path(name).suffix in TEXT_SUFFIXES:
            with opened(content) as file:
                # A read of so many bytes at once would take the memory for all of them.
                pieces = islice(iter(partial(file.read, PIECE_BYTES), b""), MAX_BYTES // PIECE_BYTES)
                text = b"".join(pieces).decode("utf-8", errors="replace")
        if holds_secret(text, os.environ):
            raise ConfigError(
                f"{name if isinstance(content, bytes) else content} holds what looks like a key or password",
                "measure without it, or leave it out",
                cause=Cause.SECRET,
            )
        if pattern.search(text):
            found.append(name)
    return tuple(found)


class _Dumper(yaml.SafeDumper):
    """Quotes texts that begin with a digit: YAML 1.1, which PyYAML writes, and 1.2 disagree on which are numbers."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+.]?\d"), [*"-+.0123456789"])


def _describe(results: Sequence[StoredResult], name: str, gathered: _Gathered) -> None:
    """Add study.yaml, the manifest and README.md to the files."""
    positions: dict[str, int] = {}
    experiments: dict[str, dict[str, Any]] = {}
    for stored in results:
        folder = stored.result.config.quality and stored.result.config.quality.folder
        tasks = gathered.inputs.get(str(gathered.place(stored.result, folder))) if folder else None
        settings = settings_of(stored.result, gathered.inputs, gathered.lock_sha256, tasks)
        identity = json.dumps(
            {key: settings[key] for key in settings if key not in ExperimentConfig.NOT_IDENTITY}, sort_keys=True
        )
        # Results of different studies may share a name; experiments of one study may not.
        names = {other["name"] for other in experiments.values()}
        if identity not in experiments and settings["name"] and settings["name"] in names:
            settings["name"] = f"{settings['name']} ({len(experiments) + 1})"
        experiments.setdefault(identity, settings)
        positions[stored.folder.resolve().name] = [*experiments].index(identity)
    manifest = Manifest(name=name, results=positions, missing=gathered.missing)
    study = {"name": name, "experiments": list(experiments.values())}
    gathered.files |= {
        STUDY: yaml.dump(study, Dumper=_Dumper, sort_keys=False).encode(),
        MANIFEST: (json_text(manifest, indent=2, ascii_only=False) + "\n").encode(),
        README: _readme(manifest, results).encode(),
    }


def settings_of(
    result: ExperimentResult, inputs: Mapping[str, str], lock_sha256: str | None, tasks: str | None
) -> dict[str, Any]:
    """Return a result's settings with "auto" replaced by what ran: commits, image, GPUs, launcher, accelerator.

    An interpreter's path is left out, and GPUs by index or UUID become their number; `inputs` are as in `_Gathered`,
    `tasks` is the place of its folder of tasks there.
    """
    settings: dict[str, Any] = result.config.model_dump(mode="json", exclude={"runner_python"})
    if isinstance(settings.get("gpus"), list):
        settings["gpus"] = {"count": len(settings["gpus"])}
    if tasks and result.config.quality:
        settings["quality"]["folder"] = tasks
    environment = result.environment
    if environment is None:
        return settings
    if environment.model.kind == "hub" and environment.model.revision:
        settings["model"] = settings["model"] | {"revision": environment.model.revision}
    if (draft := result.config.draft) and draft.on_hub and environment.model.draft:
        _, _, revision = environment.model.draft.rpartition(" ")
        settings[result.config.backend]["speculative_config"]["revision"] = revision
    if source := inputs.get(environment.dataset_sha256 or ""):
        workload = settings["workload"]
        settings["workload"] = workload | {"prompts": workload["prompts"] | {"source": source}}
    settings |= {"accelerator": "cuda" if environment.gpu_count else "cpu", "launcher": environment.launcher}
    if not environment.gpu_count:
        settings["gpus"] = "auto"
    if container := environment.container:
        locked = container.locked and container.lock_sha256 == lock_sha256
        image = None if locked else container.locked_digest or environment.image_digest or container.image
        settings["container"] = settings["container"] | {"image": image, "locked": locked}
    return settings


def _readme(manifest: Manifest, results: Sequence[StoredResult]) -> str:
    environments = [stored.result.environment for stored in results if stored.result.environment]
    builds = {(env.wattdock_version, env.wattdock_commit or "", bool(env.wattdock_dirty)) for env in environments}
    versions = " and ".join(
        f"wattdock {version}{commit and f' at commit {commit}'}{' with changes' if dirty else ''}"
        for version, commit, dirty in sorted(builds)
    )
    return f"""# {manifest.name}

Energy of LLM inference, measured with {versions or "wattdock"}.

{harmless(markdown(points_of(results)))}
Boundary of energy: {" ".join(boundaries(stored.result for stored in results).values())}

## Check it, and run it again

```
wattdock bundle verify {manifest.name}.tar
wattdock reproduce {manifest.name}.tar    # on a machine with the same GPUs
```

Both take this folder as well. `sha256sum -c {SUMS}` checks the same hashes without wattdock.

## What is in it

- `{STUDY}`: every experiment with all its settings; here, `wattdock run {STUDY} --output-dir ..` runs them
- `{BUNDLED}/`: each result as it was stored: figures, audit, environment, timelines, requests; journals of studies
- `{PROMPTS}/`, `{TASKS}/`, `{LOCKS}/`, `{LOCK}`: where there are any, files of prompts, tasks, locks, images by digest
- `{MANIFEST}`: what programs read

{"".join(f"Missing: {line}.{chr(10)}" for line in manifest.missing)}"""
