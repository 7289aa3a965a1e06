"""What is read back of a configuration built as vLLM's is; without vLLM."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import VLLM_FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


@dataclass
class Pictures:
    """As MultiModalConfig: what ModelConfig was given of it."""

    mm_cache_gb: float = 4.0
    limit_per_prompt: int = 7


@dataclass
class Model:
    """As ModelConfig: its class keeps the defaults of what its instances pass on."""

    quantization: str | None = None
    mm_cache_gb: InitVar[float] = 4.0
    multimodal_config: Pictures | None = None


@dataclass
class Draft:
    """As SpeculativeConfig."""

    method: str = "draft_model"
    quantization: str | None = "fp8"
    attention_backend: str | None = "FLASH_ATTN"


@dataclass
class Config:
    """As VllmConfig."""

    speculative_config: Draft | None = None
    model_config: Model = field(default_factory=Model)
    lora_config: None = None


@pytest.fixture
def describe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module, which imports no vLLM."""
    monkeypatch.syspath_prepend(VLLM_FOLDER)
    import wattdock_vllm_describe

    return wattdock_vllm_describe


NAMES = ("attention_backend", "enable_lora", "limit_mm_per_prompt", "mm_cache_gb", "quantization", "spec_method")


def test_what_no_part_holds_is_left_out(describe: ModuleType) -> None:
    """Neither as asked nor as a class's default, which an engine without that part does not run with."""
    assert describe.effective_engine_args(Config(), NAMES) == {"enable_lora": False, "quantization": None}


def test_inner_parts_are_read_and_a_draft_does_not_speak_for_the_model(describe: ModuleType) -> None:
    """Only names of its own are the draft's."""
    config = Config(Draft(), Model(multimodal_config=Pictures(mm_cache_gb=0.5)))
    of_pictures = {"limit_mm_per_prompt": 7, "mm_cache_gb": 0.5}
    own = {"enable_lora": False, "quantization": None, "spec_method": "draft_model"}
    assert describe.effective_engine_args(config, NAMES) == own | of_pictures


@pytest.mark.parametrize(
    ("by_worker", "said"),
    [
        ([["FLASH_ATTN"]], "FLASH_ATTN"),
        ([["MAMBA2_ATTN", "FLASH_ATTN"], ["FLASH_ATTN"]], "FLASH_ATTN, MAMBA2_ATTN"),
        ([["FLASH_ATTN"], []], "FLASH_ATTN"),
        ([["FLASH_ATTN"], None], None),
        ([[]], None),
    ],
)
def test_attention_is_that_of_all_workers_or_unknown(
    describe: ModuleType, by_worker: list[Sequence[str] | None], said: str | None
) -> None:
    """A stage of a pipeline may have no such layer; one that cannot tell leaves all unknown."""
    assert describe.attention_backend(by_worker) == said
