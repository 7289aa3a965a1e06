"""A bundle's files written to a folder, names replaced on the way."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from wattdock.analysis import ExperimentResult
from wattdock.errors import ConfigError, StoreError
from wattdock.execution import read_journal
from wattdock.publish.redaction import Private, Redactor, private_in, texts_in
from wattdock.publish.vocabulary import needed_values, schema_keys, schema_values
from wattdock.store import upgraded
from wattdock.text import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from wattdock.publish.sources import Sources

# Columns that name a series or a GPU.
STRUCTURAL = ("series", "gpu_uuid")
WHOLE = "a bundle holds whole results only"
KEEP = "leave the names in with --keep-names"


def redactor_for(sources: Sources, names: Iterable[Private], *, keep_names: bool) -> Redactor:
    """Return what replaces `names`, and what else is private in the files: users, home folders, keys of services.

    Args:
        keep_names: Replace secrets only.

    Raises:
        StoreError: A file cannot be read.
    """
    found = {*names, *_users(sources)}
    for path in sources.files.values():
        found |= _private_in_file(path)
    kept = {*schema_values(), *sources.results}
    kept |= {value for one in sources.results.values() for value in needed_values(one)}
    known = {one.text for one in names}
    # A home folder may be a container's, named like an engine; its name is replaced there, and not everywhere.
    common = {one for one in found if one.kind == "user" and one.text in kept and one.text not in known}
    found = found - common | {Private("home", f"/{place}/{one.text}") for one in common for place in ("home", "Users")}
    chosen = {one for one in found if one.kind == "secret"} if keep_names else found
    secrets = [one.text for one in found if one.kind == "secret"]
    kept = {value for value in kept if not any(secret in value for secret in secrets)}
    return Redactor(chosen, kept=frozenset(kept), keys=schema_keys())


def stage(sources: Sources, folder: Path, redactor: Redactor) -> None:
    """Write the files of `sources` to `folder`, each byte for byte unless something in it is replaced.

    Raises:
        ConfigError: Something private stands where nothing can be replaced.
        StoreError: A file cannot be read or written.
    """
    try:
        for name, path in sources.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            _kind_of(path)(path, folder / name, redactor)
        for name, path in sources.prompts.items():
            _copy_prompts(path, folder / name, redactor)
    except OSError as error:
        raise StoreError(f"{error.filename}: {error.strerror or error}; see its owner and free space") from error


def copy_lock(path: Path, target: Path) -> None:
    """Copy a lock file of images as it is: names of images and registries are what it is for.

    Raises:
        ConfigError: A secret or a home folder stands in it.
        StoreError: It cannot be read.
    """
    try:
        if found := sorted({one.kind for one in private_in(_read(path)) if one.kind in ("secret", "user")}):
            what = "a home folder" if "user" in found else "a secret"
            raise ConfigError(f"{path} holds {what}; write it anew, or name another with --lock")
        shutil.copyfile(path, target)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}; name another with --lock") from error


def _users(sources: Sources) -> set[Private]:
    energies = [one.energy for one in sources.results.values() if one.energy]
    users = {process.user for energy in energies for process in energy.gpu_processes if process.user}
    return {Private("user", name) for name in users if not name.startswith("uid ")}


def _private_in_file(path: Path) -> set[Private]:
    return {one for text in _texts(path) for one in private_in(text)}


def _texts(path: Path) -> Iterator[str]:
    """Yield a file's texts as a reader of it has them: in JSON, what stands before a name may be half an escape."""
    if path.suffix == ".parquet":
        yield from _texts_of_table(path)
    elif path.suffix == ".json":
        yield from _decoded([_content(path)])
    elif path.suffix == ".jsonl":
        yield from _decoded(_content(path).split(b"\n"))
    else:
        yield _read(path)


def _decoded(documents: Iterable[bytes]) -> Iterator[str]:
    for one in documents:
        try:
            yield from texts_in(json.loads(one))
        except ValueError:
            yield one.decode("utf-8", errors="replace")


def _texts_of_table(path: Path) -> Iterator[str]:
    import pyarrow as pa

    table = _table(path)
    columns = [one.name for one in table.schema if pa.types.is_string(one.type) and one.name not in STRUCTURAL]
    for name in columns:
        yield from (text for text in table[name].to_pylist() if text)


def _kind_of(path: Path) -> Callable[[Path, Path, Redactor], None]:
    kinds = {".json": _stage_json, ".jsonl": _stage_lines, ".parquet": _stage_table}
    return kinds.get(path.suffix, _stage_text)


def _stage_json(path: Path, target: Path, redactor: Redactor) -> None:
    document = _document(path)
    changed = redactor.value(document)
    if changed == document:
        shutil.copyfile(path, target)
        return
    if path.name == "result.json":
        _require_readable(changed, path)
    target.write_text(json_text(changed, indent=2) + "\n", encoding="utf-8")


def _require_readable(document: dict[str, Any], path: Path) -> None:
    try:
        ExperimentResult.model_validate(upgraded(document))
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise ConfigError(f"{path}: a name in {where} is a word of the result's own; {KEEP}") from error


def _stage_lines(path: Path, target: Path, redactor: Redactor) -> None:
    lines = [json_text(redactor.value(line)) + "\n" for line in read_journal(path)]
    target.write_text("".join(lines), encoding="utf-8")


def _stage_table(path: Path, target: Path, redactor: Redactor) -> None:
    import pyarrow.parquet as pq

    table = _table(path)
    changed = redactor.table(table, structural=STRUCTURAL)
    # Metadata of another writer may hold anything; our own files have none.
    if changed.equals(table) and not table.schema.metadata:
        shutil.copyfile(path, target)
    else:
        pq.write_table(changed.replace_schema_metadata(None), target, compression="zstd")


def _stage_text(path: Path, target: Path, redactor: Redactor) -> None:
    target.write_text(redactor.text(_read(path)), encoding="utf-8")


def _copy_prompts(path: Path, target: Path, redactor: Redactor) -> None:
    if any(_is_private(text, redactor) for text in _decoded(_content(path).split(b"\n"))):
        raise ConfigError(
            f"{path} holds a name or secret, and its hash is part of results, so that it cannot be changed; "
            f"leave prompts out with --no-prompts, or {KEEP}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def _is_private(text: str, redactor: Redactor) -> bool:
    return redactor.text(text) != text or any(one.kind == "secret" for one in private_in(text))


def _read(path: Path) -> str:
    # What a runner printed need not be UTF-8.
    return _content(path).decode("utf-8", errors="replace")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}; see that it can be read") from error


def _document(path: Path) -> Any:
    try:
        return json.loads(_content(path))
    except ValueError as error:
        raise StoreError(f"{path}: is no JSON ({error}); {WHOLE}") from error


def _table(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        # Also that its texts are UTF-8.
        table.validate(full=True)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path}: {str(error).splitlines()[0]}; {WHOLE}") from error
    return table
