"""Keep built TensorRT engines, a folder for each, named after everything that changes an engine; and scratch folders.

Knows nothing of how an engine is built.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock_runner.environment import package_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from wattdock_runner.backend import Gpu, LoadOrder

HEAD_BYTES = 1 << 20
SCRATCH, ALIVE = "drawn-", "alive.lock"
# Compilers, kernels and their readers; an engine built by one is not for another.
BUILDERS = ("tensorrt-llm", "tensorrt", "tensorrt-cu12", "tensorrt-cu13", "torch", "transformers", "nvidia-modelopt")
# These only matter once an engine runs; it is built the same with any of them.
AT_RUN_TIME = {"kv_cache_config", "scheduler_config", "batching_type", "peft_cache_config", "cache_transceiver_config"}
AT_RUN_TIME |= {"extended_runtime_perf_knob_config", "return_perf_metrics", "iter_stats_max_iterations"}
AT_RUN_TIME |= {"request_stats_max_iterations", "enable_tqdm"}
# These are part of an engine, and TensorRT-LLM must not be told them again.
AT_BUILD_TIME = {"build_config", "calib_config", "quant_config", "embedding_parallel_mode", "fast_build", "load_format"}


def cache_folder() -> Path:
    """Return where engines are kept: below XDG_CACHE_HOME, which in a container is the host's."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wattdock-tensorrt"


def engine_key(
    order: LoadOrder, settings: Mapping[str, object], gpus: Sequence[Gpu], capabilities: Sequence[tuple[int, int]]
) -> str:
    """Return a name that differs whenever an engine could.

    Args:
        settings: All that TensorRT-LLM is told.
        capabilities: Compute capability of each GPU.
    """
    parts = {
        "versions": package_versions(BUILDERS),
        "gpus": [[gpu.name, gpu.vram_total_bytes, *each] for gpu, each in zip(gpus, capabilities, strict=True)],
        "model": files_digest(order.model_path),
        "weights": order.random_weights and vars(order.random_weights),
        "settings": {name: value for name, value in settings.items() if name not in AT_RUN_TIME | {"model"}},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def files_digest(folder: Path) -> str:
    """Return a digest of a model folder: small files by content, larger ones by when they were written, too.

    A safetensors file begins with a table of all its tensors; two trainings of a model may differ only far behind it.
    """
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(f"{file.name}:{file.stat().st_size}:".encode())
        with file.open("rb") as content:
            digest.update(content.read(HEAD_BYTES))
        if file.stat().st_size > HEAD_BYTES:
            digest.update(str(file.stat().st_mtime_ns).encode())
    return digest.hexdigest()


def runtime_settings(settings: Mapping[str, object], engine: Path) -> dict[str, object]:
    """Return what TensorRT-LLM is told about an engine that is built already."""
    return {name: value for name, value in settings.items() if name not in AT_BUILD_TIME} | {"model": str(engine)}


def kept_engine(key: str, build: Callable[[Path], None], waits: Callable[[], None]) -> tuple[Path, bool]:
    """Return the folder of an engine and whether it had to be built first.

    `waits` is called where another runner is building it, before waiting for that.

    Two runners that want the same engine build it once; a build that fails or is killed leaves nothing that passes for
    an engine.
    """
    root = cache_folder()
    root.mkdir(parents=True, exist_ok=True)
    folder, half = root / key, root / f"{key}.building"
    with _locked(root / f"{key}.lock", waits):
        if folder.is_dir():
            return folder, False
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir()
        try:
            build(half)
            half.rename(folder)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return folder, True


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder in the cache that is removed at the end; those of runners that were killed go first.

    Drawn weights are as large as the model's, and a killed runner cannot tidy up.
    """
    root = cache_folder()
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / "scratch.lock"):
        for left in root.glob(f"{SCRATCH}*"):
            if not _is_held(left / ALIVE):
                shutil.rmtree(left)
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=root))
        alive = (folder / ALIVE).open("w")
        fcntl.flock(alive, fcntl.LOCK_EX)
    try:
        with alive:
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_held(file: Path) -> bool:
    try:
        with file.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


@contextmanager
def _locked(file: Path, waits: Callable[[], None] | None = None) -> Iterator[None]:
    with file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waits:
                waits()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
