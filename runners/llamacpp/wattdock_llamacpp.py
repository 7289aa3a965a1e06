"""The llama.cpp backend: its HTTP server, from the xllamacpp package, in a process of its own.

Imports no engine, so that the runner can describe itself at once.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from wattdock_runner.arguments import Argument
from wattdock_runner.backend import Backend
from wattdock_runner.errors import WrongState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock_runner.backend import LoadedModel, LoadOrder, Report

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
INTEGER = Argument((int,))


class LlamaCppBackend(Backend):
    """A GGUF model behind llama.cpp's server, which batches its slots continuously."""

    name = "llamacpp"
    framework = "llama.cpp"
    framework_package = "xllamacpp"
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
    }

    def load(self, order: LoadOrder, report: Report) -> LoadedModel:
        """Find or write the GGUF file, and start the server with it."""
        if find_spec("xllamacpp") is None:
            raise WrongState("xllamacpp is not installed here; install the backend's requirements file")
        report("importing transformers")
        from wattdock_llamacpp_engine import load_engine

        self.engine, loaded = load_engine(order, report)
        return loaded
