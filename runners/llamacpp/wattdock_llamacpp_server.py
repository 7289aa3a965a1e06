"""llama.cpp's HTTP server as a program: settings as JSON, then the port; those in effect are its last line."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import xllamacpp
from wattdock_llamacpp import LlamaCppBackend

SPLIT_MODES = {
    name: xllamacpp.llama_split_mode[f"LLAMA_SPLIT_MODE_{name.upper()}"] for name in ("none", "layer", "row")
}
FLASH = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}
FLASH_ATTENTION = {name: xllamacpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{own}"] for name, own in FLASH.items()}
CACHE_TYPES = {kind.name.removeprefix("GGML_TYPE_").lower(): kind for kind in xllamacpp.ggml_type}
# For GPUs, and without effect where the library was built for CPUs.
GPU_SETTINGS = {"n_gpu_layers", "main_gpu", "tensor_split", "split_mode"}
# Settings that the library has elsewhere, or by another type.
PLACES = {"n_threads": "cpuparams", "n_threads_batch": "cpuparams_batch"}
OTHER_NAMES = {"flash_attn": "flash_attn_type"}
KINDS: dict[str, dict[str, Any]] = {
    "split_mode": SPLIT_MODES,
    "flash_attn": FLASH_ATTENTION,
    "cache_type_k": CACHE_TYPES,
    "cache_type_v": CACHE_TYPES,
}


def main() -> None:
    """Serve until a signal ends this process."""
    settings = json.loads(sys.argv[1])
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.port = settings.pop("model"), int(sys.argv[2])
    cpu = xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    unused = GPU_SETTINGS if all(device["type"] == cpu for device in xllamacpp.get_device_info()) else set()
    if refused := sorted(unused & settings.keys()):
        raise ValueError(f"{refused[0]} has no effect, as this build of llama.cpp finds no GPU; leave it out")
    for name, given in settings.items():
        value: Any = given
        if name == "tensor_split":
            value = [*map(float, given), *([0.0] * (len(parameters.tensor_split) - len(given)))]
        place, own = _place(parameters, name)
        setattr(place, own, KINDS[name][value] if name in KINDS else value)
    # Kept, since the server ends with its object.
    _server = xllamacpp.Server(parameters)
    names = LlamaCppBackend.engine_arguments or ()
    told_all = {name: None if name in unused else told(parameters, name) for name in names}
    sys.stdout.write(json.dumps(told_all) + "\n")
    sys.stdout.flush()
    signal.pause()


def told(parameters: Any, name: str) -> Any:
    """Return a setting as it is in effect, JSON-ready."""
    place, own = _place(parameters, name)
    value = getattr(place, own)
    if name in KINDS:
        return next(word for word, kind in KINDS[name].items() if kind == value)
    return [share for share in value if share] if name == "tensor_split" else value


def _place(parameters: Any, name: str) -> tuple[Any, str]:
    if name in PLACES:
        return getattr(parameters, PLACES[name]), "n_threads"
    return parameters, OTHER_NAMES.get(name, name)


if __name__ == "__main__":
    main()
