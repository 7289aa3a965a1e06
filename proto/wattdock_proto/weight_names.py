"""Which files of a model's folder an engine reads weights and tokenizer from: one rule for coordinator and runners.

Names in, names out; nothing of a file is read. Needs the standard library only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    Indexed = Callable[[], AbstractSet[str]]

# Files of weights that transformers looks for, in this order.
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Files that tokenizers of transformers are read from; others' own forms (tekken.json, *.tiktoken) are not read.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
# Engines that find their weights by a pattern of names; every other one reads what transformers reads.
BY_PATTERN = ("vllm", "sglang", "tensorrt")
# Mistral's own second copy of its weights, which vLLM looks for in subfolders, too.
CONSOLIDATED = "consolidated*.safetensors"
# A part of a GGUF model: llama.cpp is given the first, and opens the others by their names.
PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
# In names of GGUF files beside a model: a vision projector, a calibration's statistics, drafting heads.
# Source: `gguf_filename_is_model` of llama.cpp's common/download.cpp.
HELPER = re.compile(r"mmproj|imatrix|(mtp|eagle3|dflash|dspark)-", re.IGNORECASE)
ONE_SET = f"leave one set of weights there, {CONSOLIDATED} not even in subfolders, and {INDEX} only where it names them"


def names_in(folder: Path, backend: str = "") -> set[str]:
    """Return the names of a folder's files, as far as an engine's patterns match them: no name that begins with a dot.

    Raises:
        OSError: The folder cannot be listed.
    """
    files = [*folder.iterdir(), *(folder.rglob(CONSOLIDATED) if backend == "vllm" else ())]
    return {
        file.relative_to(folder).as_posix()
        for file in files
        if file.name[:1] != "." and file.exists() and not file.is_dir()
    }


def weight_names(
    names: AbstractSet[str], indexed: Indexed, backend: str = "", load_format: object = None
) -> AbstractSet[str]:
    """Return the files that transformers reads, whose digests a result holds; empty where there are none.

    A whole file is read before those in an index.

    Args:
        names: What `names_in` returned.
        indexed: Returns the names in the folder's index of weights; called only where that is read.
        load_format: vLLM's argument of this name; None is its default.

    Raises:
        ValueError: The backend's engine reads other files.

    Source: `_get_resolved_checkpoint_files` of transformers 5.24; `DefaultModelLoader._prepare_weights` of vLLM 0.32
        and of SGLang; `HfWeightLoader` of TensorRT-LLM.
    """
    wanted: AbstractSet[str] = {WEIGHTS} if WEIGHTS in names else indexed() if INDEX in names else set()
    if backend not in BY_PATTERN or not wanted:
        return wanted
    beside = {name for name in names if name.endswith(".safetensors") and "/" not in name}
    consolidated = {name for name in names if re.fullmatch(r"(.*/)?consolidated[^/]*\.safetensors", name)}
    if backend == "tensorrt":
        read: AbstractSet[str] = {name for name in beside if "consolidated" not in name} or beside
    elif backend == "vllm" and (load_format == "mistral" or (load_format in (None, "auto") and consolidated)):
        read = consolidated & beside
    else:
        read = indexed() if INDEX in names else beside
    if others := sorted(read - wanted):
        raise ValueError(f"{backend} would read {others[0]}, and transformers reads {min(wanted)}")
    if wanted - read:
        raise ValueError(f"{backend} would not read {min(wanted - read)}, which transformers reads")
    return wanted


def gguf_models(names: AbstractSet[str], *, helpers: bool = False) -> dict[str, list[str]]:
    """Return the GGUF models in a folder: the first file that is there, and all.

    Args:
        helpers: Whether a file that llama.cpp takes for no model by its name is one here.

    Source: `llama_split_path` of llama.cpp.
    """
    models: dict[str, list[str]] = {}
    for name in sorted(name for name in names if name.endswith(".gguf") and (helpers or not HELPER.search(name))):
        part = PART.fullmatch(name)
        models.setdefault(f"{part[1]}-of-{part[3]}" if part else name, []).append(name)
    return {files[0]: files for files in models.values()}


def gguf_names(names: AbstractSet[str], chosen: str = "") -> list[str]:
    """Return the files of the GGUF model that llama.cpp reads, the first part first; empty where there is none.

    Args:
        names: What `names_in` returned.
        chosen: One of the model's files; empty takes the only model there is.

    Raises:
        ValueError: There are several, or a part is missing.
    """
    models = [files for files in gguf_models(names, helpers=bool(chosen)).values() if not chosen or chosen in files]
    if len(models) > 1:
        raise ValueError(f"it holds {len(models)} GGUF models: {', '.join(files[0] for files in models)}")
    if not models:
        return [chosen] if chosen else []
    if not (part := PART.fullmatch(models[0][0])):
        return models[0]
    parts = [f"{part[1]}-{number:05}-of-{part[3]}.gguf" for number in range(1, int(part[3]) + 1)]
    if missing := [name for name in parts if name not in names]:
        raise ValueError(f"{len(missing)} of {len(parts)} parts are missing, the first is {missing[0]}")
    return parts
