"""Tell which files the loader of transformers or vLLM reads from each folder; runs where that engine is.

Arguments: "pytorch" or "vllm", and folders. Prints for each folder its names as JSON, null where the loader refuses it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def read(engine: str, folder: Path) -> list[str] | None:
    """Return the names that a loader reads."""
    try:
        if engine == "pytorch":
            from transformers.modeling_utils import _get_resolved_checkpoint_files

            files, _ = _get_resolved_checkpoint_files(
                str(folder), None, None, True, None, False, None, {"local_files_only": True}
            )
        else:
            from vllm.config.load import LoadConfig
            from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

            _, files, _, _ = DefaultModelLoader(LoadConfig())._prepare_weights(str(folder), None, None, True, None)
    except (OSError, KeyError, RuntimeError, ValueError):
        return None
    return sorted(Path(file).relative_to(folder).as_posix() for file in files)


if __name__ == "__main__":
    print(json.dumps([read(sys.argv[1], Path(folder)) for folder in sys.argv[2:]]))
