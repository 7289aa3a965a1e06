"""A backend's code on disk, and the environment variables of its runner: what reaches it, what is kept from it.

A backend NAME is a folder of this name that holds `wattdock_NAME.py`; there is no list of names to edit. Starts nothing
and imports nothing of theirs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError
from wattdock.launch.protocol import LaunchSpec
from wattdock.text import is_secret, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

REPO = Path(__file__).resolve().parents[3]
PROTO_DIR = REPO / "proto"
COMMON_DIR = REPO / "runners" / "common"
# Settings of engines and of what they are built on; all else of the host's is none of a container's business.
ENGINE_NAME = re.compile(r"(VLLM|NCCL|GLOO|OMP|MKL|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|TLLM|TRTLLM)_")
# What of a process's whole environment steers an engine, and so belongs to a result.
STEERS_NAME = re.compile(
    ENGINE_NAME.pattern
    + r"|(CUDA|CUBLAS|CUBLASLT|CUDNN|NVIDIA|NVTE|UCX|RAY|KMP|GOMP|OPENBLAS|NUMEXPR|DNNL|ONEDNN|ATEN|TORCHDYNAMO|XLA"
    r"|HF|TRANSFORMERS|TOKENIZERS|ACCELERATE|FLASHINFER|FLASH|TENSORRT|TRT|MALLOC|OMPI|UCC)_|(LD_PRELOAD|LD_LIBRARY_PATH)$"
)
# What an image says to the container toolkit before anything starts; engines do not read it.
TOOLKITS = re.compile(r"NVIDIA_(REQUIRE|DRIVER|VISIBLE|PRODUCT)_")
# Wider than what is kept from a runner: a name that only looks like a secret's is recorded without its value.
SECRET_LIKE = re.compile(r"TOKEN|KEY|SECRET|PASS(WORD|WD|PHRASE)|CREDENTIAL|AUTH", re.IGNORECASE)
HIDDEN = "set"
# The coordinator fetches models; a runner finds them on disk.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
QUIET = {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
# These belong to the coordinator's interpreter. Without kept byte code every runner would compile its packages anew.
PYTHON_NAMES = frozenset(
    {"PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
)


def runners_path() -> tuple[Path, ...]:
    """Return the folders that hold runners, searched in this order: those in WATTDOCK_RUNNERS, then `runners/` here."""
    named = os.environ.get("WATTDOCK_RUNNERS", "").split(os.pathsep)
    return (*(Path(folder).absolute() for folder in named if folder), REPO / "runners")


def backends() -> tuple[str, ...]:
    """Return the names of all backends that can be found, sorted."""
    return tuple(
        sorted(
            {
                module.parent.name
                for folder in runners_path()
                for module in folder.glob("*/wattdock_*.py")
                if module.stem == f"wattdock_{module.parent.name}"
            }
        )
    )


def find_runner(backend: str) -> Path:
    """Return the folder of a backend's runner.

    Raises:
        ConfigError: There is no backend of this name; the message holds the nearest name.
    """
    known = backends()
    if backend in known:
        return next(
            folder / backend for folder in runners_path() if (folder / backend / f"wattdock_{backend}.py").is_file()
        )
    near = nearest(backend, known)
    hint = f"did you mean {near!r}?" if near else "set WATTDOCK_RUNNERS to a folder that holds it"
    raise ConfigError(f"unknown backend {backend!r} (there are: {', '.join(known) or 'none'}); {hint}")


def runner_variables(spec: LaunchSpec, environ: Mapping[str, str], *, keep_pythonpath: bool) -> dict[str, str]:
    """Return all environment variables of one runner.

    Args:
        spec: The runner; its `gpu_indices` decide what CUDA shows it.
        environ: The coordinator's own environment; what belongs to its interpreter is left out, and secrets: models
            are fetched by the coordinator.
        keep_pythonpath: Append the caller's PYTHONPATH to ours, for an interpreter that the user named.

    Source: CUDA programming guide, "CUDA Environment Variables": an empty CUDA_VISIBLE_DEVICES shows no device.
    """
    kept = {name: value for name, value in environ.items() if name not in PYTHON_NAMES and not is_secret(name, value)}
    ours = [str(folder.absolute()) for folder in (PROTO_DIR, COMMON_DIR, spec.runner_dir)]
    theirs = environ.get("PYTHONPATH", "").split(os.pathsep) if keep_pythonpath else []
    return kept | {
        # The runner's working folder is not the caller's, so relative entries would point elsewhere.
        "PYTHONPATH": os.pathsep.join([*ours, *(str(Path(folder).absolute()) for folder in theirs if folder)]),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in spec.gpu_indices),
        **OFFLINE,
        **QUIET,
    }


def container_variables(spec: LaunchSpec, environ: Mapping[str, str], *, cache: str) -> dict[str, str]:
    """Return what is set in a runner's container beside what its image sets.

    Args:
        spec: The runner; which GPUs it sees is asked of the engine, not of CUDA.
        environ: The coordinator's own environment; only engines' settings are taken, and no secret.
        cache: The folder, in the container, that may be written to and is kept.

    Source: PyTorch, Triton and vLLM name these folders; NCCL and gloo take the interface to use from these variables.
    """
    kept = {name: value for name, value in environ.items() if ENGINE_NAME.match(name) and not is_secret(name, value)}
    # NVIDIA's images ask for every GPU by themselves; which of two such variables wins is not to be relied on.
    gpus = {"NVIDIA_VISIBLE_DEVICES": ",".join(spec.gpu_uuids) or "void"}
    none = {} if spec.gpu_uuids else {"CUDA_VISIBLE_DEVICES": ""}
    return kept | {
        "HOME": f"{cache}/home",
        # The caller has no name in there; Python and shells ask these before /etc/passwd.
        "USER": "runner",
        "LOGNAME": "runner",
        # That home is kept, and packages below it would come before the image's.
        "PYTHONNOUSERSITE": "1",
        "XDG_CACHE_HOME": cache,
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/torchinductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **gpus,
        **none,
        **OFFLINE,
        **QUIET,
    }


def given_settings(environ: Mapping[str, str], *, in_container: bool) -> dict[str, str]:
    """Return the engine settings that reach a runner from the coordinator's own environment, sorted by name.

    What is set here whatever the environment says is no part of them. A value that may be a secret is "set".

    Args:
        in_container: The runner gets what a container gets; else what a process gets.
    """
    spec = LaunchSpec("", Path(), Path())
    if in_container:
        reach, ours = (container_variables(spec, seen, cache="/cache") for seen in (environ, {}))
    else:
        reach, ours = (runner_variables(spec, seen, keep_pythonpath=False) for seen in (environ, {}))
    given = {name: value for name, value in reach.items() if name not in ours and steers(name)}
    return {name: HIDDEN if SECRET_LIKE.search(name) else value for name, value in sorted(given.items())}


def steers(name: str) -> bool:
    """Whether a variable of this name decides how an engine runs."""
    return bool(STEERS_NAME.match(name)) and not TOOLKITS.match(name)
