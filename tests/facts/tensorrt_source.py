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
            return [str(ast.literal_eval(item)) for item in getattr(node.value, "elts", ())]
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
    functions = [one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
    properties = [one for one in functions if _is_property(one)]
    methods = [one for one in functions if one not in properties and _is_public(one.name)]
    attributes = {one.name for one in properties} | {name for one in functions for name in _set_on_self(one)}
    return {
        "bases": [ast.unparse(base) for base in node.bases],
        "fields": {
            one.target.id: ast.unparse(one.annotation)
            for one in node.body
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.target.id[0] != "_"
        },
        "methods": {one.name: _parameters(one) for one in methods},
        "attributes": sorted(name for name in attributes if name[0] != "_"),
    }


def _is_public(name: str) -> bool:
    return name[0] != "_" or name in KEPT_METHODS


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        getattr(one, "id", getattr(one, "attr", "")) in ("property", "setter") for one in function.decorator_list
    )


def _set_on_self(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the attributes that a method gives its object."""
    targets = [one.targets[0] for one in ast.walk(function) if isinstance(one, ast.Assign)]
    targets += [one.target for one in ast.walk(function) if isinstance(one, ast.AnnAssign)]
    return {one.attr for one in targets if isinstance(one, ast.Attribute) and getattr(one.value, "id", "") == "self"}


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    given = function.args
    plain = {one.arg: ast.unparse(one.annotation) if one.annotation else "" for one in given.args + given.kwonlyargs}
    return plain | ({f"**{given.kwarg.arg}": ""} if given.kwarg else {})


if __name__ == "__main__":
    sys.exit(main())
