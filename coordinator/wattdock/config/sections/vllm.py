"""Settings of the vLLM runner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, model_validator

from wattdock.config.lengths import Positive, Settings
from wattdock.config.sections import EngineMemory, ReplicableSection, TensorPipelineSection
from wattdock.errors import ConfigError
from wattdock_proto.context import model_context

if TYPE_CHECKING:
    from collections.abc import Mapping

# vLLM's own defaults for offline use on GPUs of 70 GiB and more, 0.26 to 0.32.
# Source: CacheConfig.gpu_memory_utilization, EngineArgs.get_batch_defaults.
SHARE, STEP_TOKENS, SEQUENCES = 0.92, 16384, 1024

# Methods that draft without a model; vLLM takes the first one's name in a model's place, too.
# Source: `SpeculativeConfig.__post_init__` of vLLM 0.32.
WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix")


class SpeculativeSettings(Settings):
    """Speculative decoding; any other key of vLLM's own `speculative_config` may stand here too.

    Attributes:
        method: How tokens are drafted: "ngram", "mtp", "eagle", "draft_model", …
        model: A draft model: an id on a hub or a folder, as in `model`; None where the method needs none.
        revision: Branch, tag or commit of a draft model on a hub.
        num_speculative_tokens: Tokens drafted for a request in a step.
    """

    method: str | None = None
    model: str | None = None
    revision: str | None = None
    num_speculative_tokens: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_a_model(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        model, method = (str(settings.get(name) or "").strip("[]") for name in ("model", "method"))
        if (method or model) not in WITHOUT_MODEL:
            return settings
        if model not in ("", method or model):
            raise ValueError(f"method: {method} drafts without a model; leave out model: {model}")
        return {name: value for name, value in settings.items() if name != "model"} | {"method": method or model}


NO_DRAFTS = SpeculativeSettings()


class Section(TensorPipelineSection, ReplicableSection):
    """`vllm:` in an experiment; any other argument of vLLM's engine may stand here too, and None is vLLM's own choice.

    Attributes:
        dtype: "auto" is the checkpoint's own on a GPU and float32 on a CPU.
        tensor_parallel_size: GPUs that each layer is split over.
        pipeline_parallel_size: Groups of GPUs that the layers are spread over.
        gpu_memory_utilization: Share of each GPU's memory for weights and KV cache together.
        kv_cache_memory_bytes: Size of the KV cache on each device; on a CPU 2 GiB unless set.
        max_model_len: Tokens of the longest request, answer included.
        max_num_seqs: Most requests served at a time; at least `workload.batch_size`.
        max_num_batched_tokens: Most tokens computed in one step.
        enable_prefix_caching: Off unless set; where on, cached prompt tokens are counted per request.
        speculative_config: Draft tokens, and check several in a step; joules stay those per output token.
        serve: Behind vLLM's own HTTP server, as it is deployed, instead of in the runner's process.
    """

    arrivals: ClassVar = ("batch", "closed", "open", "single")
    spans_nodes: ClassVar = True
    size_names: ClassVar = ("tensor_parallel_size", "pipeline_parallel_size")

    tensor_parallel_size: Positive = 1
    pipeline_parallel_size: Positive = 1
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    kv_cache_memory_bytes: Annotated[int, Field(ge=1, le=2**63 - 1)] | None = None
    max_model_len: Positive | None = None
    max_num_seqs: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    enable_prefix_caching: bool = False
    # Left out of an experiment's identity where it is not set, as in results from before it was a setting.
    speculative_config: SpeculativeSettings = Field(NO_DRAFTS, exclude_if=NO_DRAFTS.__eq__)
    serve: bool = False
    quantization: str | None = None

    def require_drawable(self) -> None:
        """Accept weights that are drawn where they lie: those that vLLM quantises while loading have no place yet.

        Raises:
            ConfigError: Holds the setting, and what to do without it.
        """
        needs_weights = {"quantization": self.quantization, "speculative_config.model": self.speculative_config.model}
        if name := next(filter(needs_weights.get, needs_weights), None):
            raise ConfigError(
                f"vllm.{name}: {needs_weights[name]} needs weights to read, and a shape's are drawn at random",
                "leave it out, or give a model with weights",
            )

    def context_tokens(self, model: Mapping[str, Any]) -> int | None:
        """Return the positions of the longest request; None where only vLLM knows."""
        return self.max_model_len or model_context(model, as_vllm=True)

    def memory(self) -> EngineMemory | None:
        """Return what vLLM profiles at its start: one step of most tokens, then choosing tokens for most requests."""
        if self.moves_memory or self.speculative_config.model:
            return None
        return EngineMemory(
            share=self.gpu_memory_utilization or SHARE,
            step_tokens=self.max_num_batched_tokens or STEP_TOKENS,
            logits_rows=self.max_num_seqs or SEQUENCES,
            kv_cache_bytes=self.kv_cache_memory_bytes,
            kv_dtype=str((self.model_extra or {}).get("kv_cache_dtype", "auto")),
            repeats_kv_heads=True,
        )
