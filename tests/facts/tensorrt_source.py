"""Make a file of facts about TensorRT-LLM's API from a checkout of its source: names and types, nothing else.

    python tests/facts/tensorrt_source.py CHECKOUT SOURCE > tests/facts/tensorrt-llm-<release>.json

SOURCE says where the checkout comes from, for instance "v1.2.1 of the repository". Nothing is imported.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

# Where the classes lie that wattdock speaks to, or that those inherit from.
CLASSES = {
    "tensorrt_llm/llmapi/llm_args.py": ("KvCacheConfig", "BaseLlmArgs", "TorchLlmArgs"),
    "tensorrt_llm/llmapi/llm.py": ("RequestOutput", "BaseLLM", "_TorchLLM", "LLM"),
    "tensorrt_llm/sampling_params.py": ("SamplingParams",),
    "tensorrt_llm/executor/result.py": ("CompletionOutput", "GenerationResultBase", "GenerationResult"),
}
PACKAGES = ("tensorrt_llm",)
KEPT_METHODS = ("__init__", "__aiter__", "__anext__")


def main() -> int:
    """Print the facts; return the exit status."""
    checkout, source = Path(sys.argv[1]), sys.argv[2]
    facts = {"read_from": source, "exports": exports(checkout), "classes": classes(checkout)}
    sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    return 0


def exports(checkout: Path) -> dict[str, list[str]]:
    """Return the names that each package offers by its `__all__`; a package that is not there is left out."""
    found = {}
    for package in PACKAGES:
        file = checkout / package.replace(".", "/") / "__init__.py"
        if file.is_file():
            found[package] = sorted(_all_of(ast.parse(file.read_text(encoding="utf-8"))))
    return found


def _all_of(module: ast.Module) -> list[str]:
    for node in module.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [str(ast.literal_eval(node)) for node in getattr(node.value, "elts", ())]
    return []


def classes(checkout: Path) -> dict[str, dict[str, Any]]:
    """Return bases, fields, methods and other attributes of each class; one that is not there is left out."""
    found = {}
    for file, names in CLASSES.items():
        for node in ast.parse((checkout / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                found[node.name] = facts_of(node)
    return found


def facts_of(node: ast.ClassDef) -> dict[str, Any]:
    """Return what a class says of itself; pure."""
    functions = [node for node in node.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    properties = [node for node in functions if _is_property(node)]
    methods = [node for node in functions if node not in properties and _is_public(node.name)]
    attributes = {node.name for node in properties} | {name for node in functions for name in _set_on_self(node)}
    return {
        "bases": [ast.unparse(base) for base in node.bases],
        "fields": {
            node.target.id: ast.unparse(node.annotation)
            for node in node.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_"
        },
        "methods": {node.name: _parameters(node) for node in methods},
        "attributes": sorted(name for name in attributes if name[0] != "_"),
    }


def _is_public(name: str) -> bool:
    return name[0] != "_" or name in KEPT_METHODS


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        getattr(node, "id", getattr(node, "attr", "")) in ("property", "setter") for node in function.decorator_list
    )


def _set_on_self(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the attributes that a method gives its object."""
    targets = [node.targets[0] for node in ast.walk(function) if isinstance(node, ast.Assign)]
    targets += [node.target for node in ast.walk(function) if isinstance(node, ast.AnnAssign)]
    return {
        node.attr for node in targets if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self"
    }


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    given = function.args
    plain = {
        node.arg: ast.unparse(node.annotation) if node.annotation else "" for node in given.args + given.kwonlyargs
    }
    return plain | ({f"**{given.kwarg.arg}": ""} if given.kwarg else {})


if __name__ == "__main__":
    sys.exit(main())
