"""Code inside each of vLLM's workers: drain the device, describe the worker, draw random weights.

vLLM imports this module by name in every worker, before the model is made (`worker_extension_cls`).
"""

from __future__ import annotations

import logging
import multiprocessing
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.platforms import current_platform
from wattdock_vllm import engine_facts
from wattdock_vllm_processes import report_to_parent, unlink_once_shared
from wattdock_vllm_steps import BatchClock

from wattdock_runner.checkpoint import draw_uniform, meta_model
from wattdock_runner.linear import linear_facts
from wattdock_runner.process import die_with_parent
from wattdock_runner.values import RandomWeights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattdock_vllm_steps import Dates

# A child of vLLM's logger, whose lines reach the runner's log from every worker.
log = logging.getLogger("vllm.wattdock")

EXTENSION = "wattdock_vllm_worker.WorkerExtension"
KERNELS = "vllm.model_executor.kernels."

if runner := multiprocessing.parent_process():
    # vLLM needs seconds to end a worker, and never ends a stopped worker. Workers are started by the engine's thread,
    # which lasts as long as the runner.
    die_with_parent(runner.pid)
    report_to_parent()
    if current_platform.is_cpu():
        unlink_once_shared()


class WorkerExtension:
    """Mixed into vLLM's worker class; called through `collective_rpc`."""

    device: Any
    model_runner: Any
    rank: int
    model_config: Any
    parallel_config: Any
    vllm_config: Any

    def wattdock_drain(self) -> None:
        """Return when the device has done all its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def wattdock_watch(self) -> None:
        """Date the batches of all further passes."""
        self._wattdock_clock = BatchClock(self.model_runner, self.device, torch.cuda)

    def wattdock_open_pass(self) -> None:
        """Begin to date the batches of a pass on a drained device."""
        self._wattdock_clock.open()

    def wattdock_dates(self) -> Dates:
        """Return when each batch of the pass was computed; see `BatchClock.dates`."""
        return self._wattdock_clock.dates()

    def wattdock_facts(self) -> dict[str, Any]:
        """Return what the worker holds, JSON-ready: in a server's answer only lists and mappings stay what they are.

        `uuid` is its GPU's as torch writes it, None on a CPU; `weight_bytes` are those in memory, and what a split
        repeats, each worker has; `drew_whole` says that random weights were drawn as whole tensors, from which it took
        its shards; `attention` is None where a layer does not tell; the first worker's `engine` is
        `engine_facts`, which reads vLLM's source; `linear` is `linear_facts`.
        """
        on_gpu = self.device.type == "cuda"
        model = self.model_runner.get_model()
        dtype = str(self.model_config.dtype).removeprefix("torch.")
        return {
            "uuid": str(torch.cuda.get_device_properties(self.device).uuid) if on_gpu else None,
            "layers": self.model_config.get_num_layers(self.parallel_config),
            "weight_bytes": sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()),
            "linear": linear_facts(model, dtype, kernel_of),
            "drew_whole": UniformLoader.drew_whole,
            "attention": self._attention(),
            "engine": None if self.rank else engine_facts(self.vllm_config, self.model_runner.kv_cache_config),
        }

    def _attention(self) -> list[str] | None:
        try:
            layers = self.vllm_config.compilation_config.static_forward_context.values()
            # Mixtures of experts are in the context too, and have no attention.
            return sorted(
                {layer.get_attn_backend().get_name() for layer in layers if hasattr(layer, "get_attn_backend")}
            )
        except Exception as error:  # noqa: BLE001 - a model that does not tell can be measured all the same
            log.warning("attention backend unknown: %s: %s", type(error).__name__, error)
            return None


def kernel_of(module: Any) -> str | None:
    """Return the kernel that multiplies a layer's weights, or else vLLM's name for the way; None without one.

    Source: `LinearBase.quant_method`; vllm/model_executor/kernels/linear.
    """
    method = getattr(module, "quant_method", None)
    if method is None or type(module).__name__ == "VocabParallelEmbedding":
        return None
    held = [
        value
        for holder in (method, getattr(module, "scheme", None))
        for value in getattr(holder, "__dict__", {}).values()
    ]
    kernels = [type(value).__name__ for value in held if type(value).__module__.startswith(KERNELS)]
    return kernels[0] if kernels else type(method).__name__


@register_model_loader("dummy")
class UniformLoader(BaseModelLoader):  # type: ignore[misc]
    """`load_format: dummy`, with the range and the seed of the load.

    vLLM's loader draws U[-0.001, 0.001) with a fixed seed, the same in every shard; up to vLLM 0.32 all tensors of a
    size are equal. This loader draws each tensor of a checkpoint whole, from a generator seeded by the tensor's name,
    and every worker takes its shards: all splits have the same model, and so has the PyTorch runner on the same kind of
    device. Where vLLM does not take tensors by transformers' names (experts), each worker draws its parameters as they
    lie, and shards of a tensor are equal on all ranks.
    """

    # Whether the last load in this process drew whole tensors.
    drew_whole = False

    def download_model(self, model_config: Any) -> None:
        """Nothing is read."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Draw every parameter in place."""
        weights = RandomWeights(**self.load_config.model_loader_extra_config)
        for name, parameter in model.named_parameters():
            if parameter.device.type == "meta":
                raise ValueError(f"random weights cannot be quantised while loading: {name} has no storage yet")
        UniformLoader.drew_whole = takes_whole_tensors(model, model_config, weights)
        if not UniformLoader.drew_whole:
            for name, parameter in model.named_parameters():
                draw_uniform(torch, parameter.data, name, weights)


def takes_whole_tensors(model: Any, model_config: Any, weights: RandomWeights) -> bool:
    """Load the drawn tensors of a whole checkpoint into `model`; return whether they fill all of its parameters."""
    device = next(model.parameters()).device

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        # By transformers' names, tied tensors once.
        config, trust = model_config.hf_text_config, model_config.trust_remote_code
        empty = meta_model(torch, AutoModelForCausalLM, config, trust_remote_code=trust)
        for name, parameter in empty.named_parameters():
            values = torch.empty(parameter.shape, dtype=model_config.dtype, device=device)
            draw_uniform(torch, values, name, weights)
            yield name, values

    try:
        filled = model.load_weights(tensors())
    except Exception as error:  # noqa: BLE001 - an unknown name, no room: every parameter is drawn anew then
        log.warning("random weights are drawn shard by shard: %s: %s", type(error).__name__, error)
        return False
    return filled is not None and {name for name, _ in model.named_parameters()} <= set(filled)
