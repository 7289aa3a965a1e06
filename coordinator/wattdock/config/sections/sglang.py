"""Settings of the SGLang runner."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from wattdock.config.lengths import Positive
from wattdock.config.sections import Dtype, ReplicableSection, TensorPipelineSection


class Section(TensorPipelineSection, ReplicableSection):
    """`sglang:` in an experiment; any other argument of its server may stand here too, and None is SGLang's own choice.

    Attributes:
        dtype: "auto" is the checkpoint's own.
        tp_size: GPUs that each layer is split over.
        pp_size: Groups of GPUs that the layers are spread over.
        mem_fraction_static: Share of each GPU's memory for weights and KV cache together.
        context_length: Tokens of the longest request, answer included.
        max_running_requests: Most requests served at a time; at least `workload.batch_size`.
        max_total_tokens: Most tokens that are kept at a time.
        chunked_prefill_size: Most tokens of a prompt that are computed in one step.
        disable_radix_cache: On unless set to false; where off, cached prompt tokens are counted per request.
    """

    arrivals: ClassVar = ("batch", "closed", "open", "single")
    needs_gpu: ClassVar = True
    prefix_cache: ClassVar = "disable_radix_cache: false"

    dtype: Dtype = "auto"
    tp_size: Positive = 1
    pp_size: Positive = 1
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = None
    context_length: Positive | None = None
    max_running_requests: Positive | None = None
    max_total_tokens: Positive | None = None
    chunked_prefill_size: int | None = None
    disable_radix_cache: bool = True
    quantization: str | None = None

    @property
    def caches_prefixes(self) -> bool:
        """Whether the server's prefix cache was switched on."""
        return not self.disable_radix_cache
