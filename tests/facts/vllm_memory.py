"""Make the file of facts about what vLLM's workers keep of their memory profile, in each version. Nothing is imported.

pip download vllm==0.33.0 --no-deps && unzip vllm-0.33.0*.whl 'vllm/v1/worker/*' -d versions/0.33.0   # and so on
python tests/facts/vllm_memory.py versions > tests/facts/vllm-memory.json
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

# Of a worker, and of both of its model runners.
PLACES = ("gpu_worker.py", "gpu_model_runner.py", "gpu/model_runner.py")
MEMORY = ("memory", "consumed", "snapshot")


def main() -> int:
    """Print the facts; return the exit status."""
    folders = sorted(Path(sys.argv[1]).glob("*/vllm/v1/worker"))
    facts = {
        folder.parents[2].name: {place: kept(folder / place) for place in PLACES if (folder / place).exists()}
        for folder in folders
    }
    sys.stdout.write(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    return 0


def kept(file: Path) -> list[str]:
    """Return the attributes about memory that any method assigns to `self`; pure but for reading."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return sorted(name for name in names if any(word in name for word in MEMORY))


if __name__ == "__main__":
    sys.exit(main())
