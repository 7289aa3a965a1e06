"""The table of the corpus, tests/data/corpus.yaml, and its folders on disk."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from contract.runner_process import PYTORCH_FOLDER, PYTORCH_PYTHON, printed_by
from contract.subjects import write_tokenizer

COMMIT = "0123456789abcdef" * 2 + "01234567"


@dataclass(frozen=True)
class Model:
    """A folder of a model, and what is right to say of it; the table explains the fields.

    Attributes:
        config: Its config.json.
        vllm_context: Positions that vLLM gives it.
        generation: Its generation_config.json; empty for none.
    """

    config: dict[str, Any]
    parameters: int
    context: int | None
    vllm_context: int | None
    language_parameters: int
    eos: list[int] = field(default_factory=lambda: [2])
    pad: int = 0
    generation: dict[str, Any] = field(default_factory=dict)
    layout: str = "whole"
    unknown: bool = False
    buffers: int = 0
    vllm_reads: str = ""
    vllm: str = ""


def _models() -> dict[str, Model]:
    table = yaml.safe_load((Path(__file__).parents[1] / "data/corpus.yaml").read_text())
    models = {}
    for name, row in table["folders"].items():
        config = row.pop("whole", None) or table["shared"] | row.pop("settings", {})
        context = row.pop("context", 256)
        defaults = {"vllm_context": context, "language_parameters": row["parameters"]}
        models[name] = Model(config=config, context=context, **defaults | row)
    return models


MODELS = _models()


def write_corpus(root: Path) -> dict[str, Path]:
    """Write all folders below `root` with the PyTorch runner's transformers; return them by name."""
    folders, orders = {}, []
    for name, model in MODELS.items():
        slug = re.sub(r"\W+", "-", name)
        is_cached = model.layout == "cache"
        folder = root / (f"models--own--{slug}/snapshots/{COMMIT}" if is_cached else slug)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(model.config))
        if model.generation:
            (folder / "generation_config.json").write_text(json.dumps(model.generation))
        write_tokenizer(folder)
        folders[name] = folder
        orders.append([str(folder), model.layout])
    maker = Path(__file__).with_name("corpus_maker.py")
    printed_by(maker, python=PYTORCH_PYTHON, folder=PYTORCH_FOLDER, stdin=json.dumps(orders))
    return folders
