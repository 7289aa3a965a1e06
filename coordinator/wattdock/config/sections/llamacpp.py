"""Settings of the llama.cpp runner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock.config.sections import BackendSection, Dtype
from wattdock_proto.context import SLOT_TOKENS, model_context

if TYPE_CHECKING:
    from collections.abc import Mapping


class Section(BackendSection):
    """`llamacpp:` in an experiment: arguments of llama.cpp's server, all other ones of which are passed through.

    Attributes:
        dtype: Type that a folder's weights are converted to, "auto" for float32. A GGUF file keeps its own, so that its
            quantisation is chosen by the file: `model: FOLDER/NAME-Q4_0.gguf`.
    """

    dtype: Dtype = "auto"

    def context_tokens(self, model: Mapping[str, Any]) -> int | None:
        """Return what each request has by default; where `n_ctx` is set, the server shares it out in its own way."""
        positions = model_context(model)
        return positions if "n_ctx" in self.passed_through else min(SLOT_TOKENS, positions or SLOT_TOKENS)
