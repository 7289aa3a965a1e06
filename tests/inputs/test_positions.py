"""How many positions a model has, and how many it has for configs that transformers and vLLM have read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import PYTORCH_FOLDER, PYTORCH_PYTHON, VLLM_FOLDER, VLLM_PYTHON, printed_by
from contract.subjects import TINY_LLAMA

from wattdock.inputs.architecture import architecture_of
from wattdock_proto.context import LEFT_OUT, UNBOUNDED, model_context

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import json, sys
from transformers import AutoConfig
from wattdock_proto.context import model_context
configs = [AutoConfig.from_pretrained(path).get_text_config() for path in sys.argv[1:]]
print(json.dumps([model_context(config.to_dict()) for config in configs]))
"""
VLLM_PROGRAM = """
import json, sys
from vllm.config import ModelConfig
print(json.dumps([ModelConfig(path, skip_tokenizer_init=True, dtype="float32").max_model_len for path in sys.argv[1:]]))
"""
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LONG = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16, "original_max_position_embeddings": 512}
MODERN = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PER_KIND = {"full_attention": MODERN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
GEMMA3 = {**TINY_LLAMA, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "head_dim": 32}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 2, "n_layer": 1}
# What a config.json of 512 positions says besides → the positions that a model has, and vLLM's where they are others.
CASES: dict[str, tuple[dict[str, Any], int, int | None]] = {
    "plain": ({}, 512, None),
    "null": ({"rope_scaling": None}, 512, None),
    "yarn": ({"rope_scaling": YARN}, 2048, 512),
    "yarn, transformers 5": ({"rope_parameters": MODERN}, 2048, 512),
    "yarn, stretched already": ({"rope_scaling": YARN, "max_position_embeddings": 2048}, 2048, None),
    "yarn, said to reach further": ({"rope_scaling": YARN, "max_position_embeddings": 4096}, 4096, None),
    "yarn, trained length left out": ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 2048, 512),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 1024, None),
    "linear, transformers 5": (
        {"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 1e4}},
        1024,
        None,
    ),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2.5}}, 1280, None),
    "llama3": ({"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 128}}, 512, None),
    "llama3, trained length left out": ({"rope_scaling": LLAMA3}, 512, None),
    "longrope": ({"rope_scaling": {"type": "longrope", **LONG}, "max_position_embeddings": 4096}, 4096, None),
    "longrope, trained length outside": (
        {
            "rope_scaling": {"type": "longrope", **LONG},
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 512,
        },
        *(4096, 512),
    ),
    "longrope, not stretched": ({"rope_scaling": {"type": "longrope", "factor": 4.0, **LONG}}, 512, None),
    "both spellings": (
        {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        *(2048, 512),
    ),
    "other names, the least": ({"seq_length": 400, "max_sequence_length": 300}, 300, None),
    "model_max_length": ({"model_max_length": 800}, 800, None),
    "a window": ({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 8}, 512, None),
    "gemma3": ({**GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 512, None),
    "gpt2": ({**GPT2, "n_positions": 256, "max_position_embeddings": None}, 256, None),
}
# What transformers refuses, warns of or rewrites, and what no class of its own has here.
STRANGE: dict[str, tuple[dict[str, Any], int | None]] = {
    "default with a factor": ({"rope_parameters": {"rope_type": "default", "factor": 4.0, "rope_theta": 1e4}}, 512),
    "factor below 1": ({"rope_scaling": {"type": "linear", "factor": 0.5}}, 512),
    "no number": ({"rope_scaling": {"type": "linear", "factor": "x"}}, 512),
    "infinite": ({"rope_scaling": {"type": "linear", "factor": float("inf")}}, 512),
    "more than a number holds": ({"rope_scaling": {**YARN, "original_max_position_embeddings": 10**400}}, 2048),
    "no kind": ({"rope_scaling": {"factor": 4.0}}, 512),
    "no object": ({"rope_scaling": [4.0]}, 512),
    "by kind of layer": ({"rope_parameters": PER_KIND}, 512),
    "by kind of layer, all stretched": ({"rope_parameters": {"a": MODERN, "b": MODERN}}, 2048),
    "trained length outside": ({"rope_scaling": YARN, "original_max_position_embeddings": 1024}, 4096),
    "no length": ({"max_position_embeddings": -1}, None),
    "yes": ({"max_position_embeddings": True}, None),
    "left out by gemma3": ({"max_position_embeddings": None, "model_type": "gemma3_text"}, 131_072),
}


@pytest.mark.parametrize("part", ["", "text_config", "llm_config", "language_config", "thinker_config"])
@pytest.mark.parametrize("name", [*CASES, *STRANGE])
def test_a_model_has_the_same_positions_wherever_its_config_says_so(name: str, part: str) -> None:
    """A model with several parts keeps it a level down; what one engine lets through another may not."""
    changes, positions, vllm = CASES[name] if name in CASES else (*STRANGE[name], None)
    config = {**TINY_LLAMA, **changes}
    whole = {"model_type": "llava", part: config} if part else config
    assert model_context(whole) == positions
    if name in CASES:
        assert model_context(whole, as_vllm=True) == (vllm or positions)


def test_a_model_s_figures_hold_its_positions() -> None:
    """`estimate` warns of requests that are longer."""
    assert architecture_of({**TINY_LLAMA, "rope_scaling": YARN}).max_context == 2048


@pytest.mark.parametrize("name", ["su", "longrope"])
def test_vllm_ends_longrope_at_the_trained_positions_under_both_of_its_names(name: str) -> None:
    """Phi-3 was published with the former."""
    config = {"rope_scaling": {"type": name, **LONG}, "original_max_position_embeddings": 512}
    assert model_context({**TINY_LLAMA, "max_position_embeddings": 4096, **config}, as_vllm=True) == 512


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["transformers", "vLLM"])
def test_engines_give_configs_the_same_positions(tmp_path: Path, engine: str) -> None:
    """Transformers rewrites the older spelling, and adds what is left out; vLLM has a rule of its own."""
    python, engine_folder = (VLLM_PYTHON, VLLM_FOLDER) if engine == "vLLM" else (PYTORCH_PYTHON, PYTORCH_FOLDER)
    if not python.exists():
        pytest.skip(f"no environment at {python}")
    (program := tmp_path / "positions.py").write_text(VLLM_PROGRAM if engine == "vLLM" else PROGRAM)
    # A null would overwrite what GPT-2 calls otherwise.
    configs = {name: {**TINY_LLAMA, **changes} for name, (changes, _, _) in CASES.items()}
    folders = [tmp_path / name for name in configs]
    for folder, config in zip(folders, configs.values(), strict=True):
        folder.mkdir()
        said = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(said))
    done = printed_by(program, *map(str, folders), python=python, folder=engine_folder)
    found = dict(zip(CASES, json.loads(done.splitlines()[-1]), strict=True))
    assert found == {name: (engine == "vLLM" and vllm) or ours for name, (_, ours, vllm) in CASES.items()}


@pytest.mark.slow
def test_positions_that_a_config_leaves_out_are_those_of_transformers_classes(tmp_path: Path) -> None:
    """Falcon was published without any; models without positions have none."""
    if not PYTORCH_PYTHON.exists():
        pytest.skip(f"no environment at {PYTORCH_PYTHON}")
    kinds = [*LEFT_OUT, *UNBOUNDED]
    for kind in kinds:
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(json.dumps({"model_type": kind}))
    (program := tmp_path / "positions.py").write_text(PROGRAM)
    folders = [str(tmp_path / kind) for kind in kinds]
    found = json.loads(printed_by(program, *folders, python=PYTORCH_PYTHON, folder=PYTORCH_FOLDER).splitlines()[-1])
    assert found == [model_context({"model_type": kind}) for kind in kinds]
    assert [model_context({"model_type": kind}, as_vllm=True) for kind in UNBOUNDED] == [2048] * len(UNBOUNDED)
