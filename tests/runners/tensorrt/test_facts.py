"""The TensorRT-LLM runner against what the source of TensorRT-LLM 1.2 has."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest
import wattdock_tensorrt
from contract.runner_process import TENSORRT_FOLDER
from facts import tensorrt_source
from runners.tensorrt.make_standin import BEHAVIOUR, FACTS
from seams.config import KvCacheSettings
from seams.config import tensorrt_Section as Section

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = {file.name: ast.parse(file.read_text(encoding="utf-8")) for file in TENSORRT_FOLDER.glob("*.py")}
# What wattdock calls otherwise.
OF_WATTDOCK = {"tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size"}
INHERITED: dict[str, tuple[str, ...]] = {
    "RequestOutput": ("GenerationResult", "GenerationResultBase"),
    "LLM": ("_TorchLLM", "BaseLLM"),
}
INHERITED |= {"TorchLlmArgs": ("BaseLlmArgs",)}


def members(name: str) -> dict[str, Any]:
    """Return all public names of a class, inherited names included; a method's with its parameters."""
    names: dict[str, Any] = {}
    for kind in (name, *INHERITED.get(name, ())):
        facts = FACTS["classes"].get(kind, {"fields": {}, "methods": {}, "attributes": []})
        names = {**facts["fields"], **dict.fromkeys(facts["attributes"]), **facts["methods"]} | names
    return names


def calls(function: str) -> Iterator[ast.Call]:
    """Yield every call of a name in the runner's source."""
    for tree in SOURCES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == function:
                yield node


def test_every_import_is_exported_there() -> None:
    """Two names of TensorRT-LLM are all."""
    nodes = [node for tree in SOURCES.values() for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imports = {alias.name for node in nodes if node.module == "tensorrt_llm" for alias in node.names}
    assert imports == {"LLM", "SamplingParams"}
    assert imports <= set(FACTS["exports"]["tensorrt_llm"])


def test_every_keyword_of_sampling_exists() -> None:
    """Both where requests are made and where the engine is drained."""
    fields = members("SamplingParams")
    keywords = [keyword.arg for call in calls("SamplingParams") for keyword in call.keywords]
    assert len(keywords) == 13
    assert [name for name in keywords if name not in fields] == []


def test_every_setting_that_wattdock_writes_exists_in_its_engine() -> None:
    """Settings travel as a mapping, which no type checker looks into."""
    (written,) = [
        node
        for node in ast.walk(SOURCES["wattdock_tensorrt.py"])
        if isinstance(node, ast.FunctionDef) and node.name == "engine_settings"
    ]
    (returned,) = [node.value for node in written.body if isinstance(node, ast.Return)]
    assert isinstance(returned, ast.Dict)
    names = {key.value for key in returned.keys if isinstance(key, ast.Constant)}
    assert {"tensor_parallel_size", "skip_tokenizer_init", "kv_cache_config"} <= names
    assert names - members("TorchLlmArgs").keys() == set()
    nested = [node for node in ast.walk(returned) if isinstance(node, ast.Dict) and node is not returned]
    cache = {key.value for node in nested for key in node.keys if isinstance(key, ast.Constant)}
    assert cache == {"enable_block_reuse"} <= members("KvCacheConfig").keys()


def test_every_typed_setting_exists_with_its_type() -> None:
    """What the section checks before launch is what TensorRT-LLM takes."""
    for model, there in ((Section, members("TorchLlmArgs")), (KvCacheSettings, members("KvCacheConfig"))):
        for name, field in model.model_fields.items():
            kind = there[OF_WATTDOCK.get(name, name)]
            plain = [word for word in ("int", "float", "bool", "str") if kind in (word, f"Optional[{word}]")]
            assert all(word in str(field.annotation) or "Literal" in str(field.annotation) for word in plain), name


def test_names_that_are_left_out_exist() -> None:
    """A name that the release does not have would leave out nothing."""
    assert members("TorchLlmArgs").keys() >= {*wattdock_tensorrt.LEFT_OUT}


@pytest.mark.parametrize("name", ["CompletionOutput", "RequestOutput", "BaseLLM", "LLM"])
def test_the_stand_in_has_nothing_that_the_real_one_lacks(name: str) -> None:
    """A runner that only works with the stand-in would pass every other test."""
    body = ast.parse((BEHAVIOUR / "llm.py").read_text(encoding="utf-8")).body
    (kind,) = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    made = tensorrt_source.facts_of(kind)
    there = members(name)
    assert {*made["attributes"], *made["methods"]} - there.keys() <= {"__init__"}
    for method in made["methods"].keys() - {"__init__"}:
        assert list(made["methods"][method]) == list(there[method])
