"""Write a package `tensorrt_llm` that takes what the real one takes and refuses what it refuses, from the facts file.

Names and types come from `tests/facts`; how it behaves is in `standin/`. It computes nothing: ids are hashes.
"""

from __future__ import annotations

import builtins
import json
import re
import shutil
from pathlib import Path
from typing import Any

FACTS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "facts/tensorrt-llm-1.2.json").read_text("utf-8"))
BEHAVIOUR = Path(__file__).with_name("standin")
GPUS = Path(__file__).parents[1] / "standin/sitecustomize.py"
VERSION = "1.2.1+standin"
# Defaults that matter here; others are what their type starts from.
DEFAULTS = {
    "backend": "'pytorch'",
    "dtype": "'auto'",
    "enable_block_reuse": "True",
    "max_batch_size": "2048",
    "max_num_tokens": "8192",
    "pipeline_parallel_size": "1",
    "sampler_type": "'auto'",
    "tensor_parallel_size": "1",
}
HEADER = """from pathlib import Path
from typing import Any, ClassVar, Dict, List, Literal, Optional, Union
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt
class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
class PybindMirror: pass
"""
SAMPLING_HEADER = """from dataclasses import dataclass
from typing import Any, List, Optional, Union
@dataclass(slots=True, kw_only=True)
class SamplingParams:
"""
INIT = """from tensorrt_llm.llmapi.llm import LLM
from tensorrt_llm.sampling_params import SamplingParams
__version__ = {version!r}
"""


def make_standin(folder: Path) -> Path:
    """Write the package into `folder`, with its metadata and the module that its workers run; return `folder`."""
    package = folder / "tensorrt_llm"
    (package / "llmapi").mkdir(parents=True)
    _write(package / "__init__.py", INIT.format(version=VERSION))
    _write(package / "llmapi/__init__.py", "")
    _write(package / "llmapi/llm_args.py", _arguments(FACTS["classes"]))
    _write(package / "sampling_params.py", SAMPLING_HEADER + _fields(FACTS["classes"]["SamplingParams"]["fields"]))
    shutil.copyfile(BEHAVIOUR / "llm.py", package / "llmapi/llm.py")
    shutil.copy(GPUS, folder)
    (folder / "mpi4py/futures").mkdir(parents=True)
    _write(folder / "mpi4py/__init__.py", "")
    _write(folder / "mpi4py/futures/__init__.py", "")
    shutil.copyfile(BEHAVIOUR / "server.py", folder / "mpi4py/futures/server.py")
    info = folder / "tensorrt_llm-1.2.1.dist-info"
    info.mkdir()
    _write(info / "METADATA", f"Metadata-Version: 2.1\nName: tensorrt-llm\nVersion: {VERSION}\n")
    return folder


def _arguments(classes: dict[str, Any]) -> str:
    copied = [name for name in ("KvCacheConfig", "BaseLlmArgs", "TorchLlmArgs") if name in classes]
    text = " ".join(kind for name in copied for kind in classes[name]["fields"].values())
    defined = {*copied, "Path", "Any", "Dict", "List", "Literal", "Optional", "Union", "None"}
    defined |= {"NonNegativeFloat", "NonNegativeInt", "PositiveInt"} | set(dir(builtins))
    names = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'", "", text))) - defined
    # Groups of settings that nobody looks into here take anything; other names are classes of Python.
    groups = [f"class {name}(BaseModel, extra='allow'): pass" for name in sorted(names) if name.endswith("Config")]
    others = [f"class {name}: pass" for name in sorted(names) if not name.endswith("Config")]
    bodies = [
        f"class {name}({', '.join(classes[name]['bases'])}):\n{_fields(classes[name]['fields'])}" for name in copied
    ]
    return HEADER + "\n".join([*groups, *others, *bodies])


def _fields(fields: dict[str, str]) -> str:
    return "".join(
        f"    {name}: {_plain(kind)} = {DEFAULTS.get(name, _start_of(kind))}\n" for name, kind in fields.items()
    )


def _plain(kind: str) -> str:
    """Return a type that needs no other package."""
    return re.sub(
        r"\b(torch|tllme|tllm)\.\w+|\b(AdditionalModelOutput|GuidedDecodingParams|LogitsProcessor)\b", "Any", kind
    )


def _start_of(kind: str) -> str:
    starts = {
        "bool": "False",
        "int": "0",
        "float": "0.0",
        "str": "''",
        "PositiveInt": "1",
        "KvCacheConfig": "KvCacheConfig()",
    }
    starts |= {"NonNegativeInt": "0", "NonNegativeFloat": "0.0"}
    return starts.get(kind, "None")


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
