"""Make the file of facts about vLLM's engine arguments: each name's type in each version. Nothing is imported.

pip download vllm==0.33.0 --no-deps && unzip vllm-0.33.0*.whl vllm/engine/arg_utils.py -d versions/0.33.0   # and so on
python tests/facts/vllm_source.py versions > tests/facts/vllm.json
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path


def main() -> int:
    """Print the facts; return the exit status."""
    folders = sorted(Path(sys.argv[1]).glob("*/vllm/engine/arg_utils.py"))
    versions = {file.parents[2].name: arguments(file.read_text(encoding="utf-8")) for file in folders}
    sys.stdout.write(json.dumps(by_name(versions), indent=1, sort_keys=True) + "\n")
    return 0


def arguments(source: str) -> dict[str, str]:
    """Return the annotated fields of class EngineArgs; pure."""
    (kind,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "EngineArgs"]
    fields = [node for node in kind.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    return {node.target.id: ast.unparse(node.annotation) for node in fields if isinstance(node.target, ast.Name)}


def by_name(versions: dict[str, dict[str, str]]) -> dict[str, object]:
    """Return all versions, and for each argument its types with the versions that have it so; pure."""
    names = sorted({name for fields in versions.values() for name in fields})
    found: dict[str, dict[str, list[str]]] = {name: {} for name in names}
    for version, fields in versions.items():
        for name, kind in fields.items():
            found[name].setdefault(kind, []).append(version)
    everywhere = list(versions)
    # Most are the same in all of them.
    short = {
        name: {kind: "all" if has == everywhere else has for kind, has in kinds.items()}
        for name, kinds in found.items()
    }
    return {"versions": everywhere, "arguments": short}


if __name__ == "__main__":
    sys.exit(main())
