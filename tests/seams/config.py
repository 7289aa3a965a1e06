"""What tests reach behind the door of `config`: a name that moves is changed here only."""

from wattdock.config.lengths import LengthSpec
from wattdock.config.sections import ReplicableSection, section_class
from wattdock.config.sections.sglang import Section as sglang_Section
from wattdock.config.sections.tensorrt import KvCacheSettings
from wattdock.config.sections.tensorrt import Section as tensorrt_Section
from wattdock.config.sections.vllm import Section as vllm_Section
from wattdock.config.workload import OWN_TEMPLATE_KWARGS

__all__ = [
    "OWN_TEMPLATE_KWARGS",
    "KvCacheSettings",
    "LengthSpec",
    "ReplicableSection",
    "section_class",
    "sglang_Section",
    "tensorrt_Section",
    "vllm_Section",
]
