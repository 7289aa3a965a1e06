"""Settings of the SGLang runner."""

from __future__ import annotations

from typing import ClassVar

from wattdock.config.lengths import Positive
from wattdock.config.sections import ReplicableSection, TensorPipelineSection


class Section(TensorPipelineSection, ReplicableSection):
    """`sglang:` in an experiment; any other argument of its server may stand here too, and None is SGLang's own choice.

    Attributes:
        dtype: "auto" is the checkpoint's own.
        tp_size: GPUs that each layer is split over.
        pp_size: Groups of GPUs that the layers are spread over.
        disable_radix_cache: On unless set to false; where off, cached prompt tokens are counted per request.
    """

    arrivals: ClassVar = ("batch", "closed", "open", "single")
    needs_gpu: ClassVar = True
    context_setting: ClassVar = "context_length"
    prefix_cache: ClassVar = "disable_radix_cache: false"

    tp_size: Positive = 1
    pp_size: Positive = 1
    disable_radix_cache: bool = True

    @property
    def caches_prefixes(self) -> bool:
        """Whether the server's prefix cache was switched on."""
        return not self.disable_radix_cache
