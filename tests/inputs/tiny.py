"""A model folder small enough to write in a test."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {"model_type": "llama", "vocab_size": 32}


def weights(value: float = 1.0) -> bytes:
    """Return the bytes of a safetensors file with one tensor."""
    data: bytes = save({"w": np.full((4, 4), value, dtype=np.float16)})
    return data


def files() -> dict[str, bytes]:
    """Return a whole model: path to content."""
    return {
        "config.json": json.dumps(CONFIG).encode(),
        "tokenizer.json": b"{}",
        "model.safetensors": weights(),
    }


def write(folder: Path, content: dict[str, bytes] | None = None) -> Path:
    """Write a model folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (content or files()).items():
        (folder / name).write_bytes(data)
    return folder
