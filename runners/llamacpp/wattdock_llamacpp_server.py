"""llama.cpp's HTTP server as a program: settings as JSON, then the port.

Its first line of JSON has the GPUs that it sees, its last those and the settings in effect.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import xllamacpp
from wattdock_llamacpp import LlamaCppBackend
from wattdock_llamacpp_gpus import visible_gpus

FLASH = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}
FLASH_ATTENTION = {name: xllamacpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{own}"] for name, own in FLASH.items()}
CACHE_TYPES = {kind.name.removeprefix("GGML_TYPE_").lower(): kind for kind in xllamacpp.ggml_type}
# Settings that the library has elsewhere, or by another type.
PLACES = {"n_threads": "cpuparams", "n_threads_batch": "cpuparams_batch"}
OTHER_NAMES = {"flash_attn": "flash_attn_type"}
KINDS: dict[str, dict[str, Any]] = {
    "flash_attn": FLASH_ATTENTION,
    "cache_type_k": CACHE_TYPES,
    "cache_type_v": CACHE_TYPES,
}


def main() -> None:
    """Serve until a signal ends this process."""
    settings = json.loads(sys.argv[1])
    facts: dict[str, Any] = {"gpus": visible_gpus()}
    _tell(facts)
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.port = settings.pop("model"), int(sys.argv[2])
    # Chats are rendered before they come; the server would refuse a file whose own template raises.
    parameters.use_jinja = False
    for name, value in settings.items():
        place, own = _place(parameters, name)
        setattr(place, own, KINDS[name][value] if name in KINDS else value)
    # Kept, since the server ends with its object.
    _server = xllamacpp.Server(parameters)
    names = LlamaCppBackend.engine_arguments or ()
    _tell(facts | {name: effective(parameters, name) for name in names})
    signal.pause()


def _tell(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def effective(parameters: Any, name: str) -> Any:
    """Return a setting as it is in effect, JSON-ready."""
    place, own = _place(parameters, name)
    value = getattr(place, own)
    return next(word for word, kind in KINDS[name].items() if kind == value) if name in KINDS else value


def _place(parameters: Any, name: str) -> tuple[Any, str]:
    if name in PLACES:
        return getattr(parameters, PLACES[name]), "n_threads"
    return parameters, OTHER_NAMES.get(name, name)


if __name__ == "__main__":
    main()
