"""The PyTorch backend: transformers' `generate` on a device, or spread over several.

Imports no engine, so that the runner can describe itself at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wattdock_runner.arguments import Argument
from wattdock_runner.backend import Backend
from wattdock_runner.errors import InvalidRequest
from wattdock_runner.values import Arrival

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock_pytorch_engine import PyTorchEngine

    from wattdock_runner.recorder import PassRecorder
    from wattdock_runner.values import LoadOrder, Prompt, Workload


class PyTorchBackend(Backend):
    """A causal language model of transformers, with static batches."""

    name = "pytorch"
    framework = "pytorch"
    framework_package = "torch"
    engine_module = "wattdock_pytorch_engine"
    packages: tuple[str, ...] = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy")
    supported_versions: str | None = ">=2.9,<3"
    arrivals: tuple[Arrival, ...] = (Arrival.BATCH, Arrival.SINGLE)
    engine_arguments: Mapping[str, Argument] | None = {
        "attn_implementation": Argument((str,)),
        "cpu_threads": Argument((int,)),
        "device_map": Argument((str, type(None)), ("auto", None)),
        "float32_matmul_precision": Argument((str,), ("highest", "high", "medium")),
        "tp_plan": Argument((str, type(None)), ("auto", None)),
        "tp_size": Argument((int, type(None))),
    }
    can_replicate = True
    engine: PyTorchEngine | None = None

    def ranks(self, order: LoadOrder) -> int:
        """Return the number of ranks that `tp_plan: auto` splits the model over: `tp_size`, by default that of GPUs."""
        plan, size = order.engine_args.get("tp_plan"), order.engine_args.get("tp_size")
        if plan is None:
            return 1
        count = len(order.gpu_uuids) if size is None else int(str(size))
        if count < 2:
            raise InvalidRequest(f"tp_plan: auto splits the model over at least 2 GPUs, not {count}; see tp_size, gpus")
        return count

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Run static batches of `in_flight` requests until the minima of the pass are met."""
        if self.engine and self.engine.ranks > 1:
            from wattdock_pytorch_ranks import RankTickets

            workload = replace(workload, tickets=RankTickets(self.engine.devices[0]))
        super().generate(workload, prompts, recorder)
