"""Write drawn weights into folders of the corpus; runs in the PyTorch runner's environment.

Reads [[folder with config.json, layout], ...] as JSON from standard input. Tensors have the names that are published.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

WHOLE = "model.safetensors"
# Files of each layout that are no weights for an engine, or that its other names hold.
BESIDE = {
    "stale index": ("model.safetensors.index.json",),
    "variant": ("model.fp16.safetensors",),
    "consolidated": ("consolidated.safetensors",),
    "below": ("original/consolidated.00.pth", "onnx/model.safetensors", "pytorch_model.bin"),
}
STALE = {"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}


def write_weights(folder: Path, layout: str) -> None:
    """Draw a model's weights and save them as the layout says."""
    config = AutoConfig.from_pretrained(folder)
    dtype = config.dtype or config.get_text_config().dtype or "float32"
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, str(dtype).removeprefix("torch.")))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.1, 0.1)
    with tempfile.TemporaryDirectory() as scratch:
        # It would write a config.json of its own.
        model.save_pretrained(scratch, max_shard_size="150KB" if layout == "shards" else "1GB")
        for file in Path(scratch).glob("model*"):
            shutil.move(file, folder / file.name)
    for name in BESIDE.get(layout, ()):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / WHOLE, folder / name)
    if layout == "stale index":
        (folder / BESIDE[layout][0]).write_text(json.dumps(STALE))
    elif layout == "tied twice":
        tensors = load_file(folder / WHOLE)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, folder / WHOLE, metadata={"format": "pt"})
    elif layout == "cache":
        as_blobs(folder)


def as_blobs(snapshot: Path) -> None:
    """Move a snapshot's files to where the hub's cache keeps them, and leave links."""
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(snapshot.iterdir())):
        shutil.move(file, blobs / f"{number:064}")
        file.symlink_to(f"../../blobs/{number:064}")


if __name__ == "__main__":
    torch.manual_seed(0)
    disable_progress_bar()
    set_verbosity_error()
    for path, asked in json.load(sys.stdin):
        write_weights(Path(path), asked)
