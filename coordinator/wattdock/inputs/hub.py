"""Models from a Hugging Face hub: resolve a revision, download what an engine loads, nothing else.

huggingface_hub reads the access token by itself; wattdock never sees the token.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal as size_text

from wattdock.errors import Cause, ConfigError, PreflightError
from wattdock.host import folders
from wattdock.inputs.locate import COMMIT
from wattdock.inputs.memory import StoredWeights
from wattdock.inputs.model_folder import read_config
from wattdock.inputs.weights import OTHER_WEIGHTS, stored_weights, without_safetensors
from wattdock.opening import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Snapshot = Callable[..., Any]

# Files that engines load, and their tokenizers.
PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer.model"]
# Subfolders hold other formats of the same weights; consolidated* is the vendor's own second copy.
IGNORED = ["*/*", "consolidated*"]
# Hex digits of git's hashes, and the largest file that is read again for one: hubs name larger files by SHA-256.
GIT_DIGITS, MOST_GIT_BYTES = 40, 1 << 26
# How often a download reports its progress, and how long a hub may take to answer at first.
REPORT_EVERY_S, ANSWER_S = 5.0, 5.0


def check_id(model_id: str) -> None:
    """Check that a text can be the id of a model, without a request.

    Raises:
        ConfigError: It cannot be an id.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(model_id)
    except HFValidationError as error:
        raise ConfigError(f"{model_id!r} is no model id", "write OWNER/NAME, or ./FOLDER for a local folder") from error


def resolve_hub(
    model_id: str,
    *,
    revision: str | None,
    with_code: bool,
    home: Path,
    progress: Callable[[str], None],
    with_weights: bool = True,
) -> Path:
    """Return the folder of a hub model's snapshot, named by its commit, downloading what is missing.

    A full commit that is here already is used without any request; so is a cached branch under HF_HUB_OFFLINE=1.

    Args:
        revision: Branch, tag or commit; None is the repository's main branch.
        with_code: Fetch the repository's Python files, too (`trust_remote_code`).
        with_weights: Fetch its weights; otherwise settings and tokenizer only.

    Raises:
        PreflightError: The model cannot be downloaded; the message says why and what to do.
    """
    cache, revision = home / "models" / "hub", revision or "main"
    patterns = [*(PATTERNS if with_weights else PATTERNS[1:]), *(["*.py"] if with_code else [])]
    snapshot = _snapshot(model_id, cache, patterns)
    with _explained_errors(model_id, revision, cache):
        if not with_weights:
            return Path(snapshot(revision=revision, tqdm_class=_lines(progress)))
        return _cached(snapshot, revision, model_id, cache) or _downloaded(
            snapshot, model_id, revision, cache, progress
        )


def is_as_fetched(snapshot: Path, files: Mapping[str, str]) -> bool:
    """Return whether the hub's own hashes vouch for all files of a snapshot; a copied cache may have lost them.

    Args:
        files: As of `file_digests`.

    Raises:
        PreflightError: A file is not the hub's: it was changed here, and figures would be published under its commit.

    Source: huggingface_hub 2.4 links each file, where it can, to a file called by its hash: git's, or SHA-256 if large.
    """
    blobs = {snapshot / name: (snapshot / name).resolve() for name in files}
    links = [file for file in blobs if file.is_symlink()]
    are_known = bool(links)
    for (file, blob), sha256 in zip(blobs.items(), files.values(), strict=True) if links else ():
        hashes = {sha256}
        if len(blob.name) == GIT_DIGITS and blob.stat().st_size <= MOST_GIT_BYTES:
            content = read_regular(blob)
            of_git = b"blob %d\0" % len(content) + content
            # Mirrors tell the SHA-1 of the content alone, or a name of another length.
            hashes |= {hashlib.sha1(data, usedforsecurity=False).hexdigest() for data in (of_git, content)}
        is_known = len(blob.name) in map(len, hashes)
        if file not in links or (is_known and blob.name not in hashes):
            raise PreflightError(
                f"{file} is not the hub's: it was changed here", "delete it with what it links to, or give its folder"
            )
        are_known &= is_known
    return are_known


def _snapshot(model_id: str, cache: Path, patterns: list[str]) -> Snapshot:
    """Return what fetches a model's files of these patterns, by revision."""
    from huggingface_hub import snapshot_download

    return partial(snapshot_download, model_id, cache_dir=cache, allow_patterns=patterns, ignore_patterns=IGNORED)


def _cached(snapshot: Snapshot, revision: str, model_id: str, cache: Path) -> Path | None:
    """Return the cached snapshot if it is complete and its commit is known without a request."""
    from huggingface_hub.constants import is_offline_mode
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.file_download import repo_folder_name

    if not (COMMIT.fullmatch(revision) or is_offline_mode()):
        return None
    try:
        return Path(snapshot(revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        # The hub's client takes a cache that this user may not enter for an empty one.
        snapshots = cache / repo_folder_name(repo_id=model_id, repo_type="model") / "snapshots"
        with suppress(FileNotFoundError):
            (snapshots / revision).stat()
        return None


def _downloaded(snapshot: Snapshot, model_id: str, revision: str, cache: Path, progress: Callable[[str], None]) -> Path:
    """Download a snapshot, after saying what it weighs and seeing that it fits and holds weights."""
    listing = snapshot(revision=revision, dry_run=True, tqdm_class=_lines(lambda _: None))
    if not any(file.filename.endswith(".safetensors") for file in listing):
        raise without_safetensors(f"{model_id} at {revision!r}", _other_weights(snapshot, revision))
    commit = listing[0].commit_hash
    missing_bytes = sum(file.file_size or 0 for file in listing if file.will_download)
    if missing_bytes:
        _make(cache)
        folders.require_space(cache, missing_bytes)
        progress(f"downloading {model_id} at {commit[:8]} ({size_text(missing_bytes)})")
    return Path(snapshot(revision=commit, tqdm_class=_lines(progress)))


def _make(cache: Path) -> None:
    """Make the cache with its locks closed to others: the hub's client waits for them without limit."""
    cache.mkdir(parents=True, exist_ok=True)
    (cache / ".locks").mkdir(mode=0o700, exist_ok=True)


def _other_weights(snapshot: Snapshot, revision: str) -> list[str]:
    """Return the names of a model's weights in other formats; downloads nothing."""
    listing = snapshot(revision=revision, dry_run=True, allow_patterns=OTHER_WEIGHTS, tqdm_class=_lines(lambda _: None))
    return [file.filename for file in listing]


def _lines(progress: Callable[[str], None]) -> type:
    """Return a class of progress bars for huggingface_hub that gives `progress` a line now and then."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Lines(tqdm):  # type: ignore[misc]
        reported_s = time.monotonic()

        def display(self, *_: object, **__: object) -> None:
            now_s = time.monotonic()
            if self.unit == "B" and self.n and now_s - Lines.reported_s > REPORT_EVERY_S:
                Lines.reported_s = now_s
                progress(f"{size_text(int(self.n))} received")

    return Lines


@contextmanager
def _explained_errors(model_id: str, revision: str, cache: Path) -> Iterator[None]:
    """Raise what goes wrong with the hub as a `PreflightError` that says why and what to do."""
    from huggingface_hub import constants, errors

    try:
        yield
        return
    except (errors.DryRunError, errors.HTTPError, OSError) as caught:  # type: ignore[attr-defined]
        failure = caught
    error = failure.__cause__ or failure if isinstance(failure, errors.DryRunError) else failure
    form = "" if "/" in model_id else "is no name of a model (OWNER/NAME, ./FOLDER or shape:NAME), and "
    match error:
        case errors.GatedRepoError():
            why = "is gated; accept its terms on its page and set HF_TOKEN to a token of that account"
        case errors.RepositoryNotFoundError():
            why = f"is not on {constants.ENDPOINT}, or is private; check the spelling, or set HF_TOKEN if it is private"
        case errors.RevisionNotFoundError():
            why = f"has no revision {revision!r}; leave `revision` out for the main branch, or name a commit"
        case errors.OfflineModeIsEnabled():
            why = f"at {revision!r} is not in {cache} and HF_HUB_OFFLINE is set; unset it or name a local ./FOLDER"
        case errors.HfHubHTTPError():
            why = f"was refused by {constants.ENDPOINT} with status {error.response.status_code}; try again later"
        case OSError() if error.errno is not None and error.filename is not None:
            why = (
                f"cannot be read or written at {error.filename}: {error.strerror}; set WATTDOCK_HOME to another folder"
            )
        case _ if "://" not in constants.ENDPOINT:
            why = f"cannot be asked for: HF_ENDPOINT={constants.ENDPOINT} has no https:// in front"
        case _:
            why = (
                f"{form}cannot be asked for: {constants.ENDPOINT} does not answer ({type(error).__name__}); "
                "check the network, name a local ./FOLDER, or in a study set `revision` to a commit that is cached"
            )
    raise PreflightError(f"{model_id} {why}", cause=Cause.NOT_FETCHED) from failure


def hub_figures(model_id: str, *, revision: str | None, home: Path) -> tuple[dict[str, Any], StoredWeights]:
    """Return a hub model's config.json and its tensors, from the headers of its safetensors files.

    Of the weights nothing but these headers is fetched, and where the snapshot is here already not even they.

    Raises:
        ConfigError: `model_id` is no model id.
        PreflightError: The model cannot be downloaded; the message says why and what to do.
    """
    import huggingface_hub as hub

    check_id(model_id)
    cache, revision = home / "models" / "hub", revision or "main"
    snapshot = _snapshot(model_id, cache, PATTERNS)
    with _explained_errors(model_id, revision, cache):
        if path := _cached(snapshot, revision, model_id, cache):
            return read_config(path), stored_weights(path)
        # Downloads retry for half a minute where no hub answers; this call does not.
        hub.get_hf_file_metadata(hub.hf_hub_url(model_id, "config.json", revision=revision), timeout=ANSWER_S)
        _make(cache)
        file = Path(hub.hf_hub_download(model_id, "config.json", revision=revision, cache_dir=cache))
        config = read_config(file.parent)
        try:
            files = hub.get_safetensors_metadata(model_id, revision=revision).files_metadata.values()
        except hub.errors.NotASafetensorsRepoError as error:
            raise without_safetensors(model_id, _other_weights(snapshot, revision)) from error
    tensors = [tensor for file in files for tensor in file.tensors.values()]
    sizes = [(tensor.dtype, tensor.data_offsets[1] - tensor.data_offsets[0]) for tensor in tensors]
    return config, StoredWeights.of(sizes, sum(size for _, size in sizes))
