"""The llama.cpp backend: its HTTP server, from the xllamacpp package, in a process of its own.

Imports no engine, so that the runner can describe itself at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock_runner.arguments import Argument
from wattdock_runner.backend import Backend

if TYPE_CHECKING:
    from collections.abc import Mapping

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
INTEGER = Argument((int,))


class LlamaCppBackend(Backend):
    """A GGUF model behind llama.cpp's server, which batches its slots continuously."""

    name = "llamacpp"
    framework = "llama.cpp"
    framework_package = "xllamacpp"
    engine_module = "wattdock_llamacpp_engine"
    gpu_library = "xllamacpp"
    gpu_probe = "import runpy; runpy.run_module('wattdock_llamacpp_gpus', run_name='__main__')"
    packages: tuple[str, ...] = ("xllamacpp", "aiohttp", "transformers", "tokenizers", "gguf", "numpy")
    engine_arguments: Mapping[str, Argument] | None = {
        "n_ctx": INTEGER,
        "n_parallel": INTEGER,
        "n_batch": INTEGER,
        "n_ubatch": INTEGER,
        "n_threads": INTEGER,
        "n_threads_batch": INTEGER,
        "flash_attn": Argument((str,), ("auto", "on", "off")),
        "cache_type_k": Argument((str,), CACHE_TYPES),
        "cache_type_v": Argument((str,), CACHE_TYPES),
        "kv_unified": Argument((bool,)),
        "n_gpu_layers": INTEGER,
    }
