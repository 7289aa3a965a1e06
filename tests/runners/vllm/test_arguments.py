"""Which of vLLM's engine arguments are taken, and what is read back of a configuration; without vLLM."""

from __future__ import annotations

import importlib
import sys
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import VLLM_FOLDER

from wattdock_runner.arguments import check_engine_args, takeable
from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

SOURCE = '''
from vllm.config.cache import CacheDType

class EngineArgs:
    """Arguments for vLLM engine."""

    model: str = ModelConfig.model
    dtype: ModelDType = ModelConfig.dtype
    max_model_len: int | None = ModelConfig.max_model_len
    enforce_eager: bool = False
    hf_token: bool | str | None = None
    data_parallel_size: int = 1
    data_parallel_rank: int = 1
    _api_process_count: int = 1
    load_format: str | LoadFormats = "auto"
    plugins: list[str] | None = None
    hf_overrides: HfOverrides = 1
    hf_config_path: str | None = None
    model_weights: str = ""
    speculative_config: dict = 1
    spec_model: str = ""
    spec_method: str = ""
    kv_cache_dtype: CacheDType | None = None

    def from_cli_args(cls, args): ...
'''


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Return the module, which imports no vLLM, as it is beside a vLLM of that source."""
    file = tmp_path / "vllm/engine/arg_utils.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(VLLM_FOLDER)
    monkeypatch.delitem(sys.modules, "wattdock_vllm", raising=False)
    module = importlib.import_module("wattdock_vllm")
    monkeypatch.delitem(sys.modules, "wattdock_vllm")
    return module


def test_arguments_are_the_fields_that_wattdock_does_not_set_itself(arguments: Any) -> None:
    """Secrets, other machines, private fields and what would swap the model are left out."""
    offered = ["enforce_eager", "kv_cache_dtype", "load_format", "max_model_len", "plugins", "serve", "spec_method"]
    offered.append("speculative_config")
    assert takeable(arguments.VllmBackend.engine_arguments) == offered


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        # One expert per token instead of two is another model, and FLOPs and revision would be of the one on disk.
        (("hf_overrides", "hf_config_path", "model_weights"), r"model\.path"),
        # Only what stands in speculative_config is resolved and hashed.
        (("spec_model",), "speculative_config"),
    ],
)
def test_no_argument_swaps_the_model_or_brings_a_draft_unchecked(
    arguments: Any, names: tuple[str, ...], reason: str
) -> None:
    """Refused by name, with the way out."""
    for name in names:
        with pytest.raises(InvalidRequest, match=rf"'{name}' .*{reason}"):
            check_engine_args({name: "x"}, arguments.VllmBackend.engine_arguments, "vllm 0.32.0")


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("kv_cache_is_set", [True, False])
def test_defaults_turn_caching_off_and_size_the_cache_of_a_cpu_engine(
    arguments: Any, *, on_gpu: bool, kv_cache_is_set: bool
) -> None:
    """Never against what was written; a GPU engine sizes its cache, and so may the environment of a CPU engine."""
    fields = {"on_gpu": on_gpu, "kv_cache_is_set": kv_cache_is_set}
    defaults = arguments.defaults_for({}, **fields)
    assert defaults["enable_prefix_caching"] is False
    assert defaults.get("kv_cache_memory_bytes") == (None if on_gpu or kv_cache_is_set else 2 << 30)
    assert "enable_prefix_caching" not in arguments.defaults_for({"enable_prefix_caching": True}, **fields)


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


NAMES = ("attention_backend", "enable_lora", "limit_mm_per_prompt", "mm_cache_gb", "quantization", "spec_method")


def test_what_no_part_holds_is_left_out(arguments: Any) -> None:
    """Neither as asked nor as a class's default, which an engine without that part does not run with."""
    assert arguments.effective_engine_args(Config(), NAMES) == {"enable_lora": False, "quantization": None}


def test_inner_parts_are_read_and_a_draft_does_not_speak_for_the_model(arguments: Any) -> None:
    """Only names of its own are the draft's."""
    config = Config(Draft(), Model(multimodal_config=Pictures(mm_cache_gb=0.5)))
    of_pictures = {"limit_mm_per_prompt": 7, "mm_cache_gb": 0.5}
    of_model = {"enable_lora": False, "quantization": None, "spec_method": "draft_model"}
    assert arguments.effective_engine_args(config, NAMES) == of_model | of_pictures


@pytest.mark.parametrize(
    ("by_worker", "name"),
    [
        ([["FLASH_ATTN"]], "FLASH_ATTN"),
        ([["MAMBA2_ATTN", "FLASH_ATTN"], ["FLASH_ATTN"]], "FLASH_ATTN, MAMBA2_ATTN"),
        ([["FLASH_ATTN"], []], "FLASH_ATTN"),
        ([["FLASH_ATTN"], None], None),
        ([[]], None),
    ],
)
def test_attention_is_that_of_all_workers_or_unknown(
    arguments: Any, by_worker: list[Sequence[str] | None], name: str | None
) -> None:
    """A stage of a pipeline may have no such layer; one that cannot tell leaves all unknown."""
    assert arguments.attention_backend(by_worker) == name
