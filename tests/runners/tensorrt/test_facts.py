"""The TensorRT-LLM runner against what TensorRT-LLM's source has, in the release it is made for and in the next."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import wattdock_tensorrt_arguments
from contract.runner_process import TENSORRT_FOLDER
from facts import tensorrt_source
from runners.tensorrt.make_standin import BEHAVIOUR, FACTS, facts_for

from wattdock.config.sections.tensorrt import KvCacheSettings, Section

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RELEASES = ("1.2", "1.3")
SOURCES = {file.name: ast.parse(file.read_text(encoding="utf-8")) for file in TENSORRT_FOLDER.glob("*.py")}
# What wattdock calls otherwise, or asks of its own runner.
OF_WATTDOCK = {"tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size"}
# Where the objects behind the runner's types come from.
REAL = {
    "CompletionOutput": "CompletionOutput",
    "RequestOutput": "RequestOutput",
    "LlmArgs": "TorchLlmArgs",
    "Llm": "LLM",
}
INHERITED: dict[str, tuple[str, ...]] = {
    "RequestOutput": ("GenerationResult", "GenerationResultBase"),
    "LLM": ("_TorchLLM", "BaseLLM"),
}
INHERITED |= {"_TrtLLM": ("BaseLLM",), "TorchLlmArgs": ("BaseLlmArgs",), "TrtLlmArgs": ("BaseLlmArgs",)}


def members(release: str, name: str) -> dict[str, Any]:
    """Return all public names of a class, inherited ones included; a method's with its parameters."""
    classes = facts_for(release)["classes"]
    found: dict[str, Any] = {}
    for kind in (name, *INHERITED.get(name, ())):
        one = classes.get(kind, {"fields": {}, "methods": {}, "attributes": []})
        found = {**one["fields"], **dict.fromkeys(one["attributes"]), **one["methods"]} | found
    return found


def calls(function: str) -> Iterator[ast.Call]:
    """Yield every call of a name in the runner's source."""
    for tree in SOURCES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == function:
                yield node


def protocol(name: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the members that the runner's own type for an object of TensorRT-LLM has."""
    (kind,) = [
        node
        for node in SOURCES["wattdock_tensorrt_api.py"].body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    return {one.name: one for one in kind.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))}


@pytest.mark.parametrize("release", RELEASES)
def test_every_import_is_exported_there(release: str) -> None:
    """The package of the TensorRT engine is only imported where it has been found."""
    exports = facts_for(release)["exports"]
    imports = [
        (node.module, alias.name)
        for tree in SOURCES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorrt_llm")
        for alias in node.names
    ]
    assert set(imports) == {("tensorrt_llm", name) for name in ("LLM", "SamplingParams", "_tensorrt_engine")}
    assert {"LLM", "SamplingParams"} <= set(exports["tensorrt_llm"])
    # A package of its own, of which nothing but its LLM is used.
    assert exports.get("tensorrt_llm._tensorrt_engine") == (["LLM"] if release == "1.2" else None)
    assert {call.func.attr for call in calls("LLM") if isinstance(call.func, ast.Attribute)} == {"LLM"}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", REAL)
def test_every_member_that_the_type_checker_lets_the_runner_use_exists(release: str, name: str) -> None:
    """Objects of TensorRT-LLM are typed as these, so nothing else of them can be used."""
    there = members(release, REAL[name])
    for member, function in protocol(name).items():
        assert member in there, member
        asked = [one.arg for one in function.args.args[1:] + function.args.kwonlyargs]
        if asked:
            # Those that are passed by position must also stand in that order.
            assert list(there[member])[1 : 1 + len(function.args.args[1:])] == asked[: len(function.args.args[1:])]
            assert set(asked) <= there[member].keys()


def test_the_engine_that_is_kept_has_a_method_to_save_it() -> None:
    """Only the LLM of the TensorRT engine, in 1.2."""
    assert list(members("1.2", "_TrtLLM")["save"]) == ["self", "engine_dir"]
    assert [one.arg for one in protocol("SavableLlm")["save"].args.args] == ["self", "engine_dir"]


@pytest.mark.parametrize("release", RELEASES)
def test_every_keyword_of_sampling_exists(release: str) -> None:
    """Both where requests are made and where the engine is drained."""
    known = members(release, "SamplingParams")
    keywords = [keyword.arg for call in calls("SamplingParams") for keyword in call.keywords]
    assert len(keywords) == 13
    assert [name for name in keywords if name not in known] == []


@pytest.mark.parametrize("release", RELEASES)
def test_every_setting_that_wattdock_writes_exists_in_its_engine(release: str) -> None:
    """Settings travel as a mapping, which no type checker looks into."""
    (written,) = [
        node
        for node in ast.walk(SOURCES["wattdock_tensorrt_load.py"])
        if isinstance(node, ast.FunctionDef) and node.name == "engine_settings"
    ]
    (returned,) = [node.value for node in written.body if isinstance(node, ast.Return)]
    assert isinstance(returned, ast.Dict)
    names = {key.value for key in returned.keys if isinstance(key, ast.Constant)}
    assert {"tensor_parallel_size", "skip_tokenizer_init", "kv_cache_config"} <= names
    for engine in ("TorchLlmArgs", "TrtLlmArgs"):
        if engine in facts_for(release)["classes"]:
            assert names - members(release, engine).keys() == set()
    nested = [node for node in ast.walk(returned) if isinstance(node, ast.Dict) and node is not returned]
    cache = {key.value for node in nested for key in node.keys if isinstance(key, ast.Constant)}
    assert cache == {"enable_block_reuse"} <= members(release, "KvCacheConfig").keys()


@pytest.mark.parametrize("release", RELEASES)
def test_every_typed_setting_exists_with_its_type(release: str) -> None:
    """What the section checks before launch is what TensorRT-LLM takes."""
    engines = {**members("1.2", "TrtLlmArgs"), **members(release, "TorchLlmArgs")}
    for model, there in ((Section, engines), (KvCacheSettings, members(release, "KvCacheConfig"))):
        for name, field in model.model_fields.items():
            kind = there[OF_WATTDOCK.get(name, name)]
            plain = [word for word in ("int", "float", "bool", "str") if kind in (word, f"Optional[{word}]")]
            assert all(word in str(field.annotation) or "Literal" in str(field.annotation) for word in plain), name


@pytest.mark.parametrize("release", RELEASES)
def test_names_that_are_left_out_exist_somewhere(release: str) -> None:
    """A name that no release has would leave out nothing."""
    anywhere = {name for one in RELEASES for kind in ("TorchLlmArgs", "TrtLlmArgs") for name in members(one, kind)}
    assert members(release, "TorchLlmArgs").keys() >= wattdock_tensorrt_arguments.OURS
    assert anywhere >= wattdock_tensorrt_arguments.ELSEWHERE


@pytest.mark.parametrize("name", ["CompletionOutput", "RequestOutput", "BaseLLM", "_TrtLLM", "LLM"])
def test_the_stand_in_has_nothing_that_the_real_one_lacks(name: str) -> None:
    """A runner that only works with the stand-in would pass every other test."""
    body = ast.parse((BEHAVIOUR / "llm.py").read_text(encoding="utf-8")).body
    (kind,) = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    made = tensorrt_source.facts_of(kind)
    there = members("1.2", name)
    assert {*made["attributes"], *made["methods"]} - there.keys() <= {"__init__"}
    for method in made["methods"].keys() - {"__init__"}:
        assert list(made["methods"][method]) == list(there[method])


def test_facts_are_made_from_a_checkout(tmp_path: Path) -> None:
    """Inheritance is kept as written, private names and function bodies are not."""
    files = {
        "tensorrt_llm/__init__.py": "__all__ = ['LLM', 'SamplingParams']",
        "tensorrt_llm/llmapi/llm_args.py": "class KvCacheConfig(A, B):\n    x: int = Field(default=1)\n    _y: int = 2",
        "tensorrt_llm/llmapi/llm.py": "class LLM(Base):\n    def __init__(self, model: str, **kw): self.args = 1\n"
        "    @property\n    def id(self): ...\n    def _private(self): ...\n    def go(self, a: int, *, b=1): ...",
        "tensorrt_llm/sampling_params.py": "",
        "tensorrt_llm/executor/result.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, str(FACTS / "tensorrt_source.py"), str(tmp_path), "a test"]
    made = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert made["exports"] == {"tensorrt_llm": ["LLM", "SamplingParams"]}
    assert made["classes"]["KvCacheConfig"] == {
        "bases": ["A", "B"],
        "fields": {"x": "int"},
        "methods": {},
        "attributes": [],
    }
    methods = {"__init__": {"self": "", "model": "str", "**kw": ""}, "go": {"self": "", "a": "int", "b": ""}}
    assert made["classes"]["LLM"] == {"bases": ["Base"], "fields": {}, "methods": methods, "attributes": ["args", "id"]}
    assert made["read_from"] == "a test"
