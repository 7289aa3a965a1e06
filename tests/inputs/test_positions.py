"""How many positions a model has: the coordinator's answer, the runners', and that for transformers' own configs."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import PYTORCH_FOLDER, PYTORCH_PYTHON, printed_by
from contract.subjects import TINY_LLAMA, write_config

from wattdock.inputs import Architecture
from wattdock_runner.checkpoint import context_tokens

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import json, sys
from transformers import AutoConfig
from wattdock_runner.checkpoint import context_tokens
print(json.dumps([context_tokens(AutoConfig.from_pretrained(path)) for path in sys.argv[1:]]))
"""
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LONG = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16, "original_max_position_embeddings": 512}
MODERN = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PER_KIND = {"full_attention": MODERN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
# What a config.json of 512 positions says besides → the positions that a model has.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 512),
    "null": ({"rope_scaling": None}, 512),
    "yarn": ({"rope_scaling": YARN}, 2048),
    "yarn, transformers 5": ({"rope_parameters": MODERN}, 2048),
    "yarn, stretched already": ({"rope_scaling": YARN, "max_position_embeddings": 2048}, 2048),
    "yarn, said to reach further": ({"rope_scaling": YARN, "max_position_embeddings": 4096}, 4096),
    "yarn, trained length left out": ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 2048),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 1024),
    "linear, transformers 5": ({"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 1e4}}, 1024),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2.5}}, 1280),
    "llama3": ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 128}}, 512),
    "llama3, trained length left out": ({"rope_scaling": LLAMA3}, 512),
    "longrope": ({"rope_scaling": {"type": "longrope", **LONG}, "max_position_embeddings": 4096}, 4096),
    "longrope, not stretched": ({"rope_scaling": {"type": "longrope", "factor": 4.0, **LONG}}, 512),
    "default with a factor": ({"rope_parameters": {"rope_type": "default", "factor": 4.0, "rope_theta": 1e4}}, 512),
    "both spellings": (
        {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        2048,
    ),
    "factor below 1": ({"rope_scaling": {"type": "linear", "factor": 0.5}}, 512),
}
# What transformers refuses or warns of, and what no class of its own has here.
STRANGE: dict[str, tuple[dict[str, Any], int]] = {
    "no number": ({"rope_scaling": {"type": "linear", "factor": "x"}}, 512),
    "infinite": ({"rope_scaling": {"type": "linear", "factor": float("inf")}}, 512),
    "more than a number holds": ({"rope_scaling": {**YARN, "original_max_position_embeddings": 10**400}}, 512),
    "no kind": ({"rope_scaling": {"factor": 4.0}}, 512),
    "no object": ({"rope_scaling": [4.0]}, 512),
    "by kind of layer": ({"rope_parameters": PER_KIND}, 512),
    "by kind of layer, all stretched": ({"rope_parameters": {"a": MODERN, "b": MODERN}}, 2048),
    "trained length outside": ({"rope_scaling": YARN, "original_max_position_embeddings": 1024}, 4096),
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", [*CASES, *STRANGE])
def test_coordinator_and_runner_give_a_model_the_same_positions(name: str, nested: bool) -> None:
    """What one lets through the other must not refuse; a model with several parts keeps it a level down."""
    changes, positions = (CASES | STRANGE)[name]
    config = {**TINY_LLAMA, **changes}
    whole = {"model_type": "llava", "text_config": config} if nested else config
    assert Architecture.from_config(whole).max_context == positions
    assert context_tokens(SimpleNamespace(**config)) == positions


@pytest.mark.slow
def test_the_runner_gives_configs_that_transformers_has_read_the_same_positions(tmp_path: Path) -> None:
    """Transformers rewrites the older spelling, and adds what is left out."""
    (program := tmp_path / "positions.py").write_text(PROGRAM)
    folders = [write_config(tmp_path / name, **changes) for name, (changes, _) in CASES.items()]
    done = printed_by(program, *map(str, folders), python=PYTORCH_PYTHON, folder=PYTORCH_FOLDER)
    found = dict(zip(CASES, json.loads(done), strict=True))
    assert found == {name: positions for name, (_, positions) in CASES.items()}
