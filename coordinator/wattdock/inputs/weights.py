"""Files of weights in a model's folder: which of them an engine reads, whether they are whole, and what they hold.

Reads file names, sizes and headers; never a tensor, and nothing outside the folder.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from wattdock.errors import Cause, ConfigError, PreflightError
from wattdock.inputs.memory import StoredWeights
from wattdock.opening import open_data, read_regular
from wattdock.text import listed
from wattdock_proto.headers import MAX_HEADER_BYTES, indexed_names
from wattdock_proto.weight_names import INDEX, ONE_SET, WEIGHTS, gguf_models, gguf_names, names_in, weight_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Files of weights in other formats: llama.cpp's, and Python's pickles, which can run their maker's code when read.
OTHER_WEIGHTS = ("*.gguf", "*.bin", "*.pt", "*.pth", "*.ckpt")
# In a header of safetensors, where a tensor lies and what type it has; in a text in the header, the quotes would be
# escaped.
KEY = b'"data_offsets"'
BROKEN = "a pointer of git-lfs or a broken download looks like this: fetch it again"
SPAN = re.compile(KEY + rb"\s*+:\s*+\[\s*+(\d{1,18})\s*+,\s*+(\d{1,18})\s*+\]")
TYPE = re.compile(rb'"dtype"\s*+:\s*+"(\w+)"')


def weight_files(path: Path, *, gguf: str = "", backend: str = "", load_format: object = None) -> list[Path]:
    """Return the files of weights that a backend reads from a folder, sorted by name.

    Args:
        gguf: Name of the GGUF file that was chosen there.
        backend: Empty stands for any backend: transformers' files, else all GGUF models.
        load_format: As in `weight_names`.

    Raises:
        ConfigError: There are none that the backend reads, they are pickled, outside the folder, missing or of several
            GGUF models, or the engine would read other files than transformers.
        PreflightError: This user may not read the folder.
    """
    if gguf and backend not in ("", "llamacpp"):
        raise ConfigError(f"{backend} does not read {gguf}", "set backend: llamacpp, or give a folder of safetensors")
    remedy = ONE_SET
    try:
        names = names_in(path, backend)
        models = gguf_models(names)
        if gguf or (models and backend == "llamacpp"):
            remedy = "download it again" if gguf or len(models) == 1 else f"give one: model: {path / min(models)}"
            return [path / name for name in gguf_names(names, gguf)]
        chosen = weight_names(names, lambda: _indexed_names(path / INDEX, backend), backend, load_format)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", remedy) from error
    except OSError as error:
        raise PreflightError(f"cannot read {path}: {error.strerror}", "see that this user may read it") from error
    if not chosen and not backend:
        chosen = {name for files in models.values() for name in files}
    if not chosen:
        raise without_safetensors(str(path), [file.name for pattern in OTHER_WEIGHTS for file in path.glob(pattern)])
    if missing := sorted(chosen - names):
        what = f"{len(missing)} of {len(chosen)} weight files are missing in {path}, the first is {missing[0]}"
        raise ConfigError(what, "download the model again")
    return [path / name for name in sorted(chosen)]


def _indexed_names(index: Path, backend: str) -> set[str]:
    try:
        names = indexed_names(read_regular(index, limit_bytes=MAX_HEADER_BYTES, follow=True), backend)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{index} is not a weight index ({error!r})", "download the model again") from error
    if outside := [name for name in sorted(names) if not name.endswith(".safetensors") or "/" in name]:
        raise ConfigError(f"{index} names {outside[0]!r}, not a *.safetensors beside it", "take another model")
    return names


def without_safetensors(model: str, others: Sequence[str]) -> ConfigError:
    """Return why a model cannot be loaded, and what to do.

    Args:
        model: A folder, or a model on a hub.
        others: Names of its files of weights in other formats.
    """
    if not others:
        return ConfigError(f"no weights in {model}", f"it needs {WEIGHTS}, or {INDEX} with its shards")
    if gguf := sorted(name for name in others if name.endswith(".gguf")):
        remedy = "give the path of one such file (of a hub's after `hf download`) as model, and set backend: llamacpp"
        return ConfigError(f"{model} has its weights in {listed(gguf, 1)}, and no *.safetensors", remedy)
    pickled = listed(sorted(others), 1)
    what = f"{model} has its weights in {pickled}, which runs code when it is read, and no *.safetensors"
    remedy = "take another, or convert it where you trust it: transformers' from_pretrained(…).save_pretrained(FOLDER)"
    return ConfigError(what, remedy, cause=Cause.RUNS_CODE)


def check_weights(files: Sequence[Path]) -> None:
    """Check that the files of one model are whole: each is as long as its header says.

    Raises:
        ConfigError, PreflightError: A file is cut short, a placeholder, or no language model; or as `beginning_of`.
    """
    for file in files:
        beginning_of(file, 4)
        if file.suffix == ".gguf":
            _check_gguf(file, len(files))
        else:
            _check_safetensors(file)


def beginning_of(file: Path, count: int) -> bytes:
    """Return the first `count` bytes of a file.

    Raises:
        ConfigError, PreflightError: It is no regular file; or this user may not read it.
    """
    try:
        with open_data(file) as stream:
            return stream.read(count)
    except OSError as error:
        kind = PreflightError if isinstance(error, PermissionError) else ConfigError
        raise kind(f"cannot read {file}: {error.strerror}", "see that this user may read it") from error


def _check_gguf(file: Path, parts: int) -> None:
    from wattdock_proto.gguf_reader import require_language_model

    try:
        require_language_model(file, parts)
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError, OSError) as error:
        what = f"{file}, which begins with {beginning_of(file, 4)!r}, is no whole GGUF language model: {error}"
        raise ConfigError(what, "download it again, or give another file") from error


def _check_safetensors(file: Path) -> None:
    """Check that a file is as long as its header says.

    Source: safetensors format: 8 bytes little-endian header length, JSON header, tensors.
    """
    size_bytes = file.stat().st_size
    try:
        with open_data(file) as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            if header_bytes > min(size_bytes, MAX_HEADER_BYTES):
                raise ValueError(f"header of {header_bytes} bytes")
            header = stream.read(header_bytes).rstrip()
        # No object is made of the header: one of 32 MB would become a gigabyte.
        ends = [int(span[2]) for span in SPAN.finditer(header)]
        if len(ends) != header.count(KEY) or header[:1] + header[-1:] != b"{}":
            raise ValueError(f"header {header[:40]!r}")
    except ValueError as error:
        raise ConfigError(f"{file} ({size_bytes:,} bytes) is not a safetensors file ({error!r})", BROKEN) from error
    expected_bytes = 8 + header_bytes + max(ends, default=0)
    if size_bytes != expected_bytes:
        raise ConfigError(f"{file} has {size_bytes:,} bytes, its header says {expected_bytes:,}", "download it again")


def stored_weights(path: Path, **reader: Any) -> StoredWeights:
    """Return the tensors that an engine would load from a folder: safetensors files without their headers.

    A GGUF model counts with its headers, which are small beside it.

    Args:
        reader: As in `weight_files`.

    Raises:
        ConfigError, PreflightError: As `weight_files`.
    """
    total_bytes, sizes = 0, list[tuple[str, int]]()
    for file in weight_files(path, **reader):
        total_bytes += file.stat().st_size
        if file.suffix == ".gguf":
            sizes.append(("GGUF", 0))
            continue
        with open_data(file) as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            header = stream.read(min(header_bytes, MAX_HEADER_BYTES))
        total_bytes -= 8 + header_bytes
        # A text of the header's metadata may be called dtype, too: then types are unknown, and sizes are not.
        types = [kind.decode() for kind in TYPE.findall(header)]
        spans = [int(end) - int(begin) for begin, end in SPAN.findall(header)]
        sizes += zip(types if len(types) == len(spans) else [""] * len(spans), spans, strict=True)
    return StoredWeights.of(sizes, total_bytes)
