"""Print what becomes of what goes wrong inside a real engine; runs in the backend's environment, not in pytest's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from wattdock_vllm_load import end_engine, load_model

from wattdock_runner.backend import LoadOrder, RandomWeights
from wattdock_runner.clock import now_ns


class Silent:
    """A layer whose backend has no name, as vLLM's base class of backends has none."""

    def get_attn_backend(self) -> type[Silent]:
        """Return a backend."""
        return Silent

    @staticmethod
    def get_name() -> str:
        """Tell nothing."""
        raise NotImplementedError


order = LoadOrder(Path(sys.argv[1]), random_weights=RandomWeights(-0.02, 0.02, 1))
model, _ = load_model(order, lambda *_: None, now_ns())
layers = model.engine.vllm_config.compilation_config.static_forward_context
attention = [model.engine.collective_rpc("wattdock_attention")]
layers["silent"] = Silent()
attention.append(model.engine.collective_rpc("wattdock_attention"))
del layers["silent"]
end_engine(model.engine)
sys.stdout.write("\n" + json.dumps({"attention": attention}))
