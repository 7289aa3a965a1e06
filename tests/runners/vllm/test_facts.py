"""The vLLM runner and its settings against the arguments and the inner names that each supported vLLM has."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from contract.runner_process import VLLM_FOLDER
from facts.vllm_source import USED, key, kinds_in, used
from packaging.specifiers import SpecifierSet
from seams.config import ReplicableSection
from seams.config import vllm_Section as Section

FACTS = json.loads((Path(__file__).parents[2] / "facts/vllm.json").read_text(encoding="utf-8"))
VERSIONS: list[str] = FACTS["versions"]
OF_WATTDOCK = {"low", "high", "seed"}


def written_by_the_runner() -> set[str]:
    """Return every name that the runner gives EngineArgs itself, and those that it reads from what was given."""
    names = set()
    for file in ("wattdock_vllm_load.py", "wattdock_vllm.py"):
        tree = ast.parse((VLLM_FOLDER / file).read_text(encoding="utf-8"))
        functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for name in {"engine_settings", "defaults_for"} & functions.keys():
            for node in ast.walk(functions[name]):
                if isinstance(node, ast.Dict):
                    names |= {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
                elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                    names.add(str(node.slice.value))
    return names - OF_WATTDOCK


def test_the_facts_cover_every_supported_minor_version() -> None:
    """A range that nobody looked into is a guess."""
    source = (VLLM_FOLDER / "wattdock_vllm.py").read_text()
    [range_] = re.findall(r'supported_versions: str \| None = "(.+)"', source)
    supported = SpecifierSet(range_)
    assert [version.split(".")[1] for version in VERSIONS] == [str(minor) for minor in range(26, 34)]
    assert all(version in supported for version in VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_that_the_runner_writes_is_an_argument_there(version: str) -> None:
    """Twelve names, from prefix caching to the workers' extension."""
    written = written_by_the_runner()
    assert {"enable_prefix_caching", "load_format", "worker_extension_cls", "skip_tokenizer_init"} <= written
    assert written - kinds_in(version, FACTS["arguments"]).keys() == set()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_typed_setting_is_an_argument_there_of_that_type(version: str) -> None:
    """What the section checks before launch is what vLLM takes; replicas and a server are the runner's affair."""
    there = kinds_in(version, FACTS["arguments"])
    settings = Section.model_fields.keys() - (ReplicableSection.model_fields.keys() - {"dtype"}) - {"serve"}
    assert settings - there.keys() == set()
    plain = {"int": int, "float": float, "bool": bool, "str": str}
    for name, kind in there.items():
        words = set(kind.replace("|", " ").split())
        if name in Section.model_fields and words <= {*plain, "None"}:
            annotation = str(Section.model_fields[name].annotation)
            assert any(word in annotation for word in words - {"None"}), (name, kind, annotation)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_name_that_the_runner_uses_is_there(version: str) -> None:
    """Most are not public: of each, where it lies, and whether it is called."""
    there = kinds_in(version, FACTS["names"])
    called = {key(*item): item[2].endswith("()") for item in used(USED)}
    assert called.keys() - there.keys() == set()
    assert there.keys() - called.keys() == set(), "make the facts again"
    assert {name: kind for name, kind in there.items() if (kind == "function") is not called[name]} == {}


def test_the_names_are_those_that_the_runner_uses() -> None:
    """None that it no longer uses, and all that it imports; which attributes it reads of them, no test can tell."""
    asked = VLLM_FOLDER.parent / "common/wattdock_runner/apis.py"
    sources = [file.read_text(encoding="utf-8") for file in (*VLLM_FOLDER.glob("*.py"), asked)]
    listed = {name.removesuffix("()") for _, _, name in used(USED)} - {"__bool__"}
    assert {name for name in listed if not any(name in source for source in sources)} == set()
    imports = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    of_vllm = {item.name for node in imports if (node.module or "").split(".")[0] == "vllm" for item in node.names}
    assert "register_model_loader" in of_vllm
    owners = {owner for _, owner, _ in used(USED)}
    assert of_vllm - listed - owners == set()
