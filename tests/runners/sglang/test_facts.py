"""The SGLang runner and its settings against the arguments, names and texts that each supported SGLang has."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from contract.runner_process import SGLANG_FOLDER
from facts.sglang_source import TEXTS, USED
from facts.vllm_source import key, kinds_in, used
from packaging.specifiers import SpecifierSet
from seams.config import ReplicableSection
from seams.config import sglang_Section as Section
from wattdock_sglang import DEFAULTS, LEFT_OUT, REFUSED, SglangBackend

FACTS = json.loads((Path(__file__).parents[2] / "facts/sglang.json").read_text(encoding="utf-8"))
VERSIONS: list[str] = FACTS["versions"]
SOURCES = {file.name: file.read_text(encoding="utf-8") for file in SGLANG_FOLDER.glob("*.py")}


def keys_in(file: str, function: str) -> set[str]:
    """Return the texts that are keys of a mapping in one of the runner's functions."""
    [node] = [
        node
        for node in ast.walk(ast.parse(SOURCES[file]))
        if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    mappings = [mapping for mapping in ast.walk(node) if isinstance(mapping, ast.Dict)]
    return {str(key.value) for mapping in mappings for key in mapping.keys if isinstance(key, ast.Constant)}


def test_the_facts_cover_every_supported_version() -> None:
    """A range that nobody looked into is a guess."""
    supported = SpecifierSet(SglangBackend.supported_versions or "")
    assert all(version in supported for version in VERSIONS)
    assert [version.split(".")[2] for version in VERSIONS] == ["17", "18", "19", "20", "21", "22", "23"]
    assert not {"0.5.16", "0.5.24"} & set(supported.filter(["0.5.16", "0.5.24"]))


@pytest.mark.parametrize("version", VERSIONS)
def test_all_that_the_runner_writes_leaves_out_or_refuses_is_an_argument_there(version: str) -> None:
    """Besides those of wattdock's own, and the one that the program sets."""
    there = kinds_in(version, FACTS["arguments"]).keys()
    written = keys_in("wattdock_sglang_engine.py", "server_settings") | DEFAULTS.keys()
    assert {"incremental_streaming_output", "disable_radix_cache", "model_path"} <= written
    assert written - there == set()
    assert keys_in("wattdock_sglang_engine.py", "server_settings") <= {*LEFT_OUT}
    assert ({name for name in LEFT_OUT if "*" not in name} | REFUSED.keys()) - there == set()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_typed_setting_is_an_argument_there_of_that_type(version: str) -> None:
    """What the section checks before launch is what SGLang takes; replicas are the runner's affair."""
    there = kinds_in(version, FACTS["arguments"])
    settings = Section.model_fields.keys() - (ReplicableSection.model_fields.keys() - {"dtype"})
    assert settings - there.keys() == set()
    for name in settings:
        [word] = [word for word in ("int", "float", "bool", "str") if there[name] in (word, f"Optional[{word}]")]
        annotation = str(Section.model_fields[name].annotation)
        assert word in annotation or (word, "Literal" in annotation) == ("str", True), name


@pytest.mark.parametrize("version", VERSIONS)
def test_every_name_and_text_that_the_runner_uses_is_there(version: str) -> None:
    """Of each name where it lies, and whether it is called."""
    there = kinds_in(version, FACTS["names"])
    called = {key(*item): item[2].endswith("()") for item in used(USED)}
    assert called.keys() == there.keys()
    assert {name: kind for name, kind in there.items() if (kind == "function") is not called[name]} == {}
    assert kinds_in(version, FACTS["texts"]).keys() == {text for texts in TEXTS.values() for text in texts.split()}


def test_the_names_and_texts_are_those_that_the_runner_uses() -> None:
    """None that it no longer uses; all that it imports, asks for, and sends."""
    texts = {text for wanted in TEXTS.values() for text in wanted.split()} - {"error", "/metrics", "length", "stop"}
    names = {name.removesuffix("()") for _, _, name in used(USED)}
    assert {name for name in names | texts if not any(name in source for source in SOURCES.values())} == set()
    nodes = [node for source in SOURCES.values() for node in ast.walk(ast.parse(source))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang")]
    assert {item.name for node in imports for item in node.names} <= names
    assert keys_in("wattdock_sglang_engine.py", "body") <= names
