"""Reading vLLM's engine arguments from its source, without vLLM."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import VLLM_FOLDER

from wattdock_runner.arguments import check_engine_args, takeable
from wattdock_runner.errors import InvalidRequest

if TYPE_CHECKING:
    from types import ModuleType

SOURCE = '''
@dataclass
class EngineArgs:
    """Arguments for vLLM engine."""

    model: str = ModelConfig.model
    dtype: ModelDType = ModelConfig.dtype
    max_model_len: int | None = ModelConfig.max_model_len
    enforce_eager: bool = False
    hf_token: bool | str | None = None
    data_parallel_size: int = 1
    _api_process_count: int = 1
    load_format: str | LoadFormats = "auto"
    plugins: list[str] | None = None

    def from_cli_args(cls, args): ...
'''


@pytest.fixture(scope="module")
def arguments() -> ModuleType:
    """Return the module, which imports no vLLM."""
    path = VLLM_FOLDER / "wattdock_vllm_arguments.py"
    spec = importlib.util.spec_from_file_location("wattdock_vllm_arguments", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_arguments_are_the_fields_that_wattdock_does_not_set_itself(arguments: Any) -> None:
    """Secrets, other machines and private fields are left out."""
    assert set(arguments.arguments_in(SOURCE)) == {"max_model_len", "enforce_eager", "load_format", "plugins"}


def test_no_argument_swaps_the_model_or_its_config(arguments: Any) -> None:
    """One expert per token instead of two is another model, and FLOPs and revision would be of the one on disk."""
    source = "class EngineArgs:\n    hf_overrides: HfOverrides = 1\n    hf_config_path: str | None = None\n"
    known = arguments.arguments_in(source + "    model_weights: str = ''\n    seed: int = 0\n")
    for name in ("hf_overrides", "hf_config_path", "model_weights"):
        with pytest.raises(InvalidRequest, match=rf"'{name}' is not taken: another model would run .* model\.path"):
            check_engine_args({name: {"num_experts_per_tok": 1}}, known)
    assert takeable(known) == ["seed"]


@pytest.mark.parametrize(
    ("annotation", "types"),
    [
        ("int | None", {int, type(None)}),
        ("bool", {bool}),
        ("list[str]", {list}),
        ("dict[str, int] | None", {dict, type(None)}),
        ("str | LoadFormats", {bool, dict, float, int, list, str, type(None)}),
        ("'dict[str, int] | Other'", {bool, dict, float, int, list, str, type(None)}),
    ],
)
def test_plain_types_are_checked_here_and_all_others_by_vllm(arguments: Any, annotation: str, types: set[type]) -> None:
    """A name that only vLLM knows may stand for anything."""
    assert set(arguments.json_types(ast.parse(annotation, mode="eval").body)) == types


def test_prefix_caching_is_off_unless_it_is_asked_for(arguments: Any) -> None:
    """On every device, and never against what was written."""
    for on_gpu in (True, False):
        assert arguments.defaults_for({}, on_gpu=on_gpu, kv_cache_is_set=False)["enable_prefix_caching"] is False
        asked = {"enable_prefix_caching": True}
        assert "enable_prefix_caching" not in arguments.defaults_for(asked, on_gpu=on_gpu, kv_cache_is_set=False)


def test_a_cpu_engine_gets_a_cache_of_known_size_unless_one_is_set(arguments: Any) -> None:
    """A GPU engine sizes its own."""
    assert arguments.defaults_for({}, on_gpu=False, kv_cache_is_set=False)["kv_cache_memory_bytes"] == 2 << 30
    assert "kv_cache_memory_bytes" not in arguments.defaults_for({}, on_gpu=False, kv_cache_is_set=True)
    assert "kv_cache_memory_bytes" not in arguments.defaults_for({}, on_gpu=True, kv_cache_is_set=False)


def test_a_set_is_written_in_one_order_whatever_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runners with equal arguments would seem to differ."""
    monkeypatch.syspath_prepend(VLLM_FOLDER)
    describe = importlib.import_module("wattdock_vllm_describe")
    assert describe.json_ready({"bits": frozenset("zyxab"), "order": ("z", "a")}) == {
        "bits": ["a", "b", "x", "y", "z"],
        "order": ["z", "a"],
    }
