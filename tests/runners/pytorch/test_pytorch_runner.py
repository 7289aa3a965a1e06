"""What the PyTorch backend alone promises, shown on its real runner on the CPU."""

from __future__ import annotations

import json
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import PYTORCH_FOLDER, PYTORCH_PYTHON, ids_prompt, running, workload
from contract.subjects import SMALL_UNIFORM, write_config

if TYPE_CHECKING:
    from contract.runner_process import Runner
    from contract.shared_runners import SharedRunners
    from runners.checkpoints import Checkpoint, Reference

GIB = 1 << 30


@pytest.fixture
def bare(runners: SharedRunners, model_path: Path) -> tuple[Runner, Path]:
    """Return a runner with nothing loaded, and a folder with config.json only."""
    return runners.bare("pytorch"), model_path


def test_running_out_of_host_memory_is_named_and_the_runner_lives(bare: tuple[Runner, Path]) -> None:
    """A real allocation fails under a real limit; the next pass runs."""
    runner, folder = bare
    runner.load(folder, engine_args={"cpu_threads": 1}, random_weights=SMALL_UNIFORM)
    size_kib = re.search(r"VmSize:\s+(\d+)", Path(f"/proc/{runner.process.pid}/status").read_text())
    assert size_kib is not None
    pid, unlimited = runner.process.pid, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(pid, resource.RLIMIT_AS, (int(size_kib[1]) * 1024 + GIB // 8, resource.RLIM_INFINITY))
    code, detail = runner.refused_pass(workload(in_flight=600, max_output_tokens=2), [ids_prompt(400)] * 600)
    resource.prlimit(pid, resource.RLIMIT_AS, unlimited)
    assert code == "RESOURCE_EXHAUSTED"
    assert " 600 " in detail
    assert runner.generate(workload(), [ids_prompt(3)]).summary.requests == 1


def test_engine_arguments_are_in_effect_when_read_back(bare: tuple[Runner, Path]) -> None:
    """What was requested is what the model runs with."""
    runner, folder = bare
    requested: dict[str, object] = {
        "attn_implementation": "eager",
        "cpu_threads": 1,
        "float32_matmul_precision": "medium",
        "device_map": "auto",
    }
    loaded, _ = runner.load(folder, engine_args=requested, random_weights=SMALL_UNIFORM, dtype="bfloat16")
    effective = json.loads(loaded.effective_engine_args_json)
    assert effective.pop("device_map") == {"": "cpu"}
    assert effective.items() >= {**requested, "dtype": "bfloat16"}.items() - {("device_map", "auto")}
    assert loaded.environment.weight_bytes == 2 * loaded.environment.parameter_count


@pytest.mark.parametrize(
    ("own", "spins"),
    [
        ({}, "1000"),
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "0"),
        # Where all GPUs are shown, as in a container that has some, CPUs seldom decide.
        ({"CUDA_VISIBLE_DEVICES": "all"}, "300000"),
    ],
)
def test_threads_that_wait_let_other_programs_compute_unless_the_user_says_otherwise(
    model_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, Any], spins: str
) -> None:
    """As the OpenMP library that torch brings prints it when it is loaded."""
    # What tests beside each other set for all their runners.
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with running("pytorch", PYTORCH_FOLDER, PYTORCH_PYTHON, OMP_DISPLAY_ENV="VERBOSE", **own) as runner:
        runner.load(model_path, random_weights=SMALL_UNIFORM)
        assert f"GOMP_SPINCOUNT = '{spins}'" in runner.log.read_text()


def test_attention_that_transformers_does_not_have_is_refused(bare: tuple[Runner, Path]) -> None:
    """By its name."""
    runner, folder = bare
    engine_args: dict[str, object] = {"attn_implementation": "flash_attention_9"}
    code, detail = runner.refused_load(folder, engine_args=engine_args, random_weights=SMALL_UNIFORM)
    assert (code, "flash_attention_9" in detail) == ("INVALID_ARGUMENT", True), detail


def test_checkpoint_that_lacks_a_parameter_is_refused(
    bare: tuple[Runner, Path], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Transformers would draw what is missing and go on."""
    write_config(tmp_path, num_hidden_layers=3)
    (tmp_path / "model.safetensors").symlink_to(checkpoint.folder / "model.safetensors")
    code, detail = bare[0].refused_load(tmp_path)
    assert code == "INVALID_ARGUMENT"
    assert "model.layers.2." in detail


def test_quantised_weights_that_transformers_unpacks_are_told(
    bare: tuple[Runner, Path], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """It has no kernels for FP8 on a CPU, and would only log it; the config still says 8 bits."""
    loaded, _ = bare[0].load(checkpoint.folder)
    assert json.loads(loaded.effective_engine_args_json)["linear_operands_bits"] == 32
    assert not [warning for warning in loaded.environment.warnings if "unpacked" in warning]
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    config = json.loads((checkpoint.folder / "config.json").read_text()) | {"quantization_config": fp8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(checkpoint.folder / "model.safetensors")
    bare[0].unload()
    loaded, _ = bare[0].load(tmp_path)
    effective = json.loads(loaded.effective_engine_args_json)
    assert (effective["linear_weights"], effective["linear_operands_bits"]) == (["float32"], 32)
    [warning] = [warning for warning in loaded.environment.warnings if "unpacked" in warning]
    assert warning == "transformers unpacked the checkpoint's fp8 weights to float32: operands have 32 bits"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"quant_method": "awq", "bits": 4}, "hold the awq weights of .*pip install gptqmodel"),
        ({"quant_method": "gptq", "bits": 4}, "hold the gptq weights of .*pip install optimum"),
        ({"quant_method": "compressed-tensors"}, "pip install compressed-tensors"),
        ({"quant_method": "modelopt"}, "it does not know the method"),
        ({"bits": 4}, "hold the quantised weights of .*no `quant_method`"),
        (None, "is quantised by quantize_config.json"),
    ],
)
def test_quantised_weights_that_transformers_cannot_hold_are_refused_unread(
    bare: tuple[Runner, Path], tmp_path: Path, asked: dict[str, object] | None, reason: str
) -> None:
    """The folder has no weights, and the reason is the method all the same."""
    write_config(tmp_path, **({"quantization_config": asked} if asked else {}))
    (tmp_path / "quantize_config.json").write_text("{}")
    code, detail = bare[0].refused_load(tmp_path)
    assert (code, bool(re.search(reason, detail)), "\n" in detail) == ("INVALID_ARGUMENT", True, False), detail


@pytest.mark.parametrize("unknown_id", [-1, 512])
def test_ids_that_are_not_in_the_vocabulary_reach_no_engine(
    bare: tuple[Runner, Path], checkpoint: Checkpoint, tmp_path: Path, unknown_id: int
) -> None:
    """Prompts of two lengths are padded and measured; the ends that are left out are told."""
    write_config(tmp_path, dtype="float32", pad_token_id=unknown_id)
    (tmp_path / "model.safetensors").symlink_to(checkpoint.folder / "model.safetensors")
    settings = {"pad_token_id": unknown_id, "eos_token_id": [2, unknown_id]}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    loaded, _ = bare[0].load(tmp_path)
    effective = json.loads(loaded.effective_engine_args_json)
    assert (effective["eos_token_ids"], effective["pad_token_id"]) == ([2], 0)
    assert any(f"[2, {unknown_id}]" in warning for warning in loaded.environment.warnings)
    prompts = [ids_prompt(3), ids_prompt(9)]
    assert bare[0].generate(workload(in_flight=2, max_output_tokens=3), prompts).summary.output_tokens == 6


def test_random_weights_have_the_stated_distribution_and_leave_the_rest_alone(reference: Reference) -> None:
    """Uniform on [-0.02, 0.04): mean 0.01, deviation 0.06/√12; ties and rotary tables as transformers makes them."""
    facts = reference.weights
    assert -0.0201 < facts["low"] < -0.0199
    assert 0.0398 < facts["high"] < 0.0401
    assert facts["mean"] == pytest.approx(0.01, abs=2e-4)
    assert facts["std"] == pytest.approx(0.06 / 12**0.5, rel=0.01)
    assert facts["distinct"] > 1_000
    assert facts["dtypes"] == ["torch.bfloat16"]
    assert facts["same_seed_is_equal"]
    assert not facts["other_seed_shares_a_tensor"]
    assert facts["queries_differ_between_layers"]
    assert facts["tied"]
    assert facts["names_match"]
    assert facts["buffers"] > 0
    assert facts["buffers_match"]
