"""Backends' runners on disk, an interpreter that a user named for them, and the variables that a runner gets.

A backend NAME is a folder `NAME` that holds `wattdock_NAME.py`; there is no list of names to edit. Imports no backend.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError, PreflightError
from wattdock.files import expanded, require_text
from wattdock.host import folders, processes
from wattdock.secrets import is_secret_variable, withheld
from wattdock.text import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHECKOUT = Path(__file__).resolve().parents[3]
# What pyproject.toml puts into an installed wattdock.
PACKAGED = Path(__file__).resolve().parents[1] / "packaged"
# Where `docker/`, `proto/` and `runners/` are: a checkout's own, else the packaged copies.
REPO = CHECKOUT if (CHECKOUT / "runners" / "common" / "wattdock_runner").is_dir() else PACKAGED
PROTO_DIR = REPO / "proto"
COMMON_DIR = REPO / "runners" / "common"
PYTHON_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
# Settings of engines and of the libraries below them; a container gets no other variable of the host. A family's keys
# and passwords stay behind: `is_secret_variable` looks at each name and value.
ENGINE_NAME = re.compile(r"(VLLM|NCCL|GLOO|OMP|MKL|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|TLLM|TRTLLM|SGLANG|SGL)_\w+")
# What changes how an engine runs in a process, which gets it and what any program gets, and so belongs to its result.
SETTING_NAME = re.compile(
    ENGINE_NAME.pattern
    + r"|(CUDA|CUBLAS|CUBLASLT|CUDNN|NVTE|UCX|KMP|GOMP|OPENBLAS|NUMEXPR|DNNL|ONEDNN|ATEN|TORCHDYNAMO|XLA|TRANSFORMERS"
    r"|TOKENIZERS|ACCELERATE|FLASHINFER|FLASH|TENSORRT|TRT|MALLOC|OMPI|UCC|NUMBA|CUPY)_\w+|NVIDIA_TF32_OVERRIDE"
    # These families hold logins and addresses of services, too.
    r"|HF_(HOME|(HUB|MODULES)_CACHE|HUB_(OFFLINE|(DIS|EN)ABLE_\w+)|(ENABLE_)?PARALLEL_LOADING\w*|DEACTIVATE_ASYNC_LOAD)"
    rf"|RAY_(CGRAPH|EXPERIMENTAL)_\w+|LD_(PRELOAD|LIBRARY_PATH)|PYTHONHASHSEED|CUDACXX|{processes.COMPILERS}"
)
# Variables of every runner.
ALWAYS = {
    # The coordinator fetches models; a runner finds them on disk.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    # What lies in a working folder is no module, for the runner and whatever it starts.
    "PYTHONSAFEPATH": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}


def _runners() -> dict[str, Path]:
    """Return the folder of each backend by name; folders in WATTDOCK_RUNNERS win over `runners/` here.

    Raises:
        ConfigError: A ~ stands for no folder.
    """
    own_folders = os.environ.get("WATTDOCK_RUNNERS", "").split(os.pathsep)
    folders_by_rank = [*(expanded(folder).absolute() for folder in own_folders if folder), REPO / "runners"]
    modules = [module for folder in reversed(folders_by_rank) for module in folder.glob("*/wattdock_*.py")]
    return {module.parent.name: module.parent for module in modules if module.stem == f"wattdock_{module.parent.name}"}


def backends() -> tuple[str, ...]:
    """Return the names of all backends, sorted."""
    return tuple(sorted(_runners()))


def find_runner(backend: str) -> Path:
    """Return the folder of a backend's runner.

    Raises:
        ConfigError: There is no backend of this name; the message holds the nearest name.
    """
    runners = _runners()
    if backend in runners:
        return runners[backend]
    near = nearest(backend, sorted(runners))
    hint = f"did you mean {near!r}?" if near else "set WATTDOCK_RUNNERS to a folder that holds it"
    raise ConfigError(f"unknown backend {backend!r} (valid: {', '.join(sorted(runners)) or 'none'})", hint)


def find_python(python: str | Path) -> Path:
    """Return the absolute path of an interpreter that the user named; executes nothing.

    Raises:
        ConfigError: There is no such file.
        PreflightError: The file cannot be executed.
    """
    advice = "name a Python interpreter by path, or leave it out"
    if executable := shutil.which(expanded(python)):
        return Path(executable).absolute()
    if Path(python).exists():
        raise PreflightError(f"runner_python: {python} cannot be executed", advice)
    raise ConfigError(f"runner_python: {python} is not there", advice)


def environment_dir(runner_dir: Path) -> Path:
    """Return the folder of a runner's virtual environment: the runner's own, but for a packaged one in WATTDOCK_HOME.

    An installed package may be read-only, and is replaced by the next version.
    """
    if not runner_dir.is_relative_to(PACKAGED):
        return runner_dir
    return folders.wattdock_home() / "environments" / f"{runner_dir.name}-python{PYTHON_HERE}"


def process_variables(
    runner_dir: Path, gpu_indices: Sequence[int], environ: Mapping[str, str], *, keep_pythonpath: bool
) -> dict[str, str]:
    """Return all environment variables of a runner that is a process.

    Args:
        runner_dir: The backend's folder.
        gpu_indices: The GPUs that CUDA shows, in this order.
        environ: The coordinator's own environment, of which a runner gets what any program gets, and engine settings,
            but no secret.
        keep_pythonpath: Append the caller's PYTHONPATH to the runner's, for an interpreter that the user named.
    """
    inherited = processes.child_environment(environ, SETTING_NAME.pattern)
    modules = [PROTO_DIR, COMMON_DIR, runner_dir]
    if keep_pythonpath:
        modules += [Path(folder) for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    settings = {name: value for name, value in inherited.items() if not is_secret_variable(name, value)}
    # An interpreter that the user named may have its packages in the user's own folder.
    own = {} if keep_pythonpath else {"PYTHONNOUSERSITE": "1"}
    cache = folders.engine_cache(folders.wattdock_home())
    # By default inductor compiles into a folder of /tmp, whose name anybody can take first.
    own |= {"TORCHINDUCTOR_CACHE_DIR": f"{cache}/torchinductor", "TRITON_CACHE_DIR": f"{cache}/triton"}
    # The caller's values win, and come first: setproctitle finds a process's name by its first variable, which must
    # not be one that an engine sets anew.
    variables = settings | own | settings
    return variables | {
        # The runner's working folder is not the caller's, so relative entries would point elsewhere.
        "PYTHONPATH": os.pathsep.join(str(folder.absolute()) for folder in modules),
        **ALWAYS,
        **visible_gpus(gpu_indices),
    }


def visible_gpus(gpu_indices: Sequence[int]) -> dict[str, str]:
    """Return the variables that show a process these GPUs alone, in this order.

    Source: CUDA programming guide, "CUDA Environment Variables": an empty CUDA_VISIBLE_DEVICES shows no device.
    """
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpu_indices))}


def container_variables(gpu_uuids: Sequence[str], environ: Mapping[str, str], *, cache: str) -> dict[str, str]:
    """Return the variables that a runner's container gets besides those of its image.

    Args:
        gpu_uuids: The GPUs that the engine gives to the container.
        environ: The coordinator's own environment, of which a container gets engine settings and no secret.
        cache: A folder in the container that is writable and outlives it.

    Source: PyTorch, Triton and vLLM name these folders; NCCL and gloo take the interface to use from these variables.
    """
    engine = {name: value for name, value in environ.items() if ENGINE_NAME.fullmatch(name)}
    return {name: value for name, value in engine.items() if not is_secret_variable(name, value)} | {
        "HOME": f"{cache}/home",
        # The caller has no name in there; Python and shells ask these before /etc/passwd.
        "USER": "runner",
        "LOGNAME": "runner",
        # That home outlives the container, and packages below it would come before the image's.
        "PYTHONNOUSERSITE": "1",
        "XDG_CACHE_HOME": cache,
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/torchinductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        # NVIDIA's images set this to all GPUs; which of two such variables wins is not documented.
        "NVIDIA_VISIBLE_DEVICES": ",".join(gpu_uuids) or "void",
        **({} if gpu_uuids else {"CUDA_VISIBLE_DEVICES": ""}),
        **ALWAYS,
    }


def engine_settings(environ: Mapping[str, str], *, in_container: bool) -> dict[str, str]:
    """Return the engine settings that a runner inherits from the coordinator's environment, sorted by name.

    Variables that every runner gets with a value of wattdock's own are not among them.

    Raises:
        ConfigError: A value is not UTF-8, so that no record could hold it.
    """

    def variables(environ: Mapping[str, str]) -> dict[str, str]:
        if in_container:
            return container_variables((), environ, cache="/cache")
        return process_variables(Path(), (), environ, keep_pythonpath=False)

    own = variables({})
    inherited = {name: value for name, value in sorted(variables(environ).items()) if name not in own}
    settings = {name: withheld(value) for name, value in inherited.items() if SETTING_NAME.fullmatch(name)}
    for name, value in settings.items():
        require_text(f"{name}={value}", "variable")
    return settings
