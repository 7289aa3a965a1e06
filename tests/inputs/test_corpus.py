"""What a plan says of a folder is what an engine reports once it has loaded the folder."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

import grpc
import pytest
from contract.runner_process import (
    PYTORCH_FOLDER,
    PYTORCH_PYTHON,
    VLLM_FOLDER,
    VLLM_PYTHON,
    Runner,
    ids_prompt,
    running,
    workload,
)
from inputs.corpus import MODELS, write_corpus
from inputs.opened_files import opened_files
from refused import raises
from seams.inputs import ModelMemory, weight_files

from wattdock.config import ExperimentConfig
from wattdock.errors import ConfigError, UnknownArchitectureError
from wattdock.inputs import check_model, memory_fit
from wattdock.inputs.architecture import architecture_of
from wattdock_proto.context import model_context

if TYPE_CHECKING:
    from pathlib import Path

PYTHONS = {"pytorch": (PYTORCH_FOLDER, PYTORCH_PYTHON), "vllm": (VLLM_FOLDER, VLLM_PYTHON)}
CACHE_BYTES = 1 << 24
ENGINE_ARGS: dict[str, dict[str, object]] = {
    "pytorch": {},
    "vllm": {"max_num_seqs": 2, "kv_cache_memory_bytes": CACHE_BYTES},
}
# vLLM looks at each class in a process of its own, for half a minute, lest a GPU be touched.
INSPECTED_HERE = """
import sys, wattdock_vllm_engine
from vllm.model_executor.models import registry
from wattdock_runner.__main__ import main
registry._run_in_subprocess = lambda look: look()
sys.exit(main())
"""
PROGRAMS = {"pytorch": ("-m", "wattdock_runner"), "vllm": ("-c", INSPECTED_HERE)}


class Facts(NamedTuple):
    """What is said of a loaded folder; `kv_bytes` are those of a position's keys and values."""

    files: list[str]
    context: int | None
    eos: list[int]
    pad: int | None
    parameters: int | None
    weight_bytes: int
    kv_bytes: int | None


@pytest.mark.parametrize("name", MODELS)
def test_settings_alone_tell_context_and_parameters(name: str) -> None:
    """Of a kind that is unknown here, the reason names the kind."""
    model = MODELS[name]
    contexts = [model_context(model.config, as_vllm=as_vllm) for as_vllm in (False, True)]
    assert contexts == [model.context, model.vllm_context]
    if model.unknown:
        with raises(UnknownArchitectureError, model.config["model_type"]):
            architecture_of(model.config)
    else:
        assert architecture_of(model.config).parameters == model.language_parameters


def planned(name: str, path: Path, backend: str) -> Facts | str:
    """Return what wattdock says before a load, or the file for which it refuses the folder; ids are the table's."""
    model = MODELS[name]
    config = experiment(path, backend)
    if backend == "vllm" and model.vllm_reads:
        with raises(ConfigError, model.vllm_reads):
            check_model(config.model, config)
        return model.vllm_reads
    check_model(config.model, config)
    if backend == "vllm" and model.vllm:
        return model.vllm
    bytes_, line, *_ = memory_fit(config, gpus=0, memory_bytes=8e9, on_host=True)
    assert bytes_ is not None
    assert ("is not known here" in line) == model.unknown
    return Facts(
        [file.name for file in weight_files(path, backend=backend)],
        config.section.context_tokens(model.config),
        model.eos,
        model.pad if backend == "pytorch" else None,
        model.parameters,
        bytes_ - 4 * model.buffers,
        planned_kv_bytes(name, config) if backend == "vllm" else None,
    )


def planned_kv_bytes(name: str, config: ExperimentConfig) -> int | None:
    """Return what a position takes of vLLM's cache, in which layers with and without a window take turns."""
    engine = config.section.memory()
    if MODELS[name].unknown or engine is None:
        return None
    memory = ModelMemory.of(MODELS[name].config, engine, dtype="float32")
    if not all(layer.attends for layer in memory.model.layers):
        return None
    return int(memory.kv_bytes(1)) // len({layer.window for layer in memory.model.layers})


def experiment(path: Path, backend: str) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {"name": "x", "backend": backend, "model": {"path": str(path)}, backend: ENGINE_ARGS[backend]}
    )


def reported(runner: Runner, path: Path, backend: str, expected: Facts | str) -> Facts | str:
    """Return what an engine reports, or the expected words with which it refuses the folder."""
    weights = [file for file in path.iterdir() if file.suffix in (".safetensors", ".bin")]
    with opened_files(weights) as opened:
        try:
            loaded, _ = runner.load(path, engine_args=ENGINE_ARGS[backend])
        except grpc.RpcError as error:
            told = str(error.details())
            return expected if isinstance(expected, str) and expected in told else told
    settings, environment = json.loads(loaded.effective_engine_args_json), loaded.environment
    # vLLM says the positions that it gives a request; transformers has no limit of its own.
    if (context := settings.get("max_model_len")) is None and isinstance(expected, Facts):
        context = reached(runner, expected.context)
    runner.unload()
    blocks, expected_kv = settings.get("num_gpu_blocks"), isinstance(expected, Facts) and expected.kv_bytes
    return Facts(
        sorted(opened),
        context,
        settings["eos_token_ids"],
        settings.get("pad_token_id"),
        environment.parameter_count,
        environment.weight_bytes,
        CACHE_BYTES // (blocks * settings["block_size"]) if blocks and expected_kv else None,
    )


def reached(runner: Runner, context: int | None) -> int | None:
    """Run a request as long as the context, and return the positions with which the runner refuses a longer one."""
    whole = [ids_prompt((context or 600) - 1)]
    runner.generate(workload(max_output_tokens=1), whole)
    if context is None:
        return None
    _, words = runner.refused_pass(workload(max_output_tokens=2), whole)
    found = re.search(r"the model has (\d+)", words)
    return int(found[1]) if found else None


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The corpus on disk."""
    if not PYTORCH_PYTHON.exists():
        pytest.skip(f"no environment at {PYTORCH_PYTHON}")
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", PYTHONS)
def test_what_is_planned_is_what_engines_report(folders: dict[str, Path], backend: str) -> None:
    """Files, context, ids, parameters and memory; a folder that vLLM cannot load is named in the table."""
    runner_folder, python = PYTHONS[backend]
    if not python.exists():
        pytest.skip(f"no environment at {python}")
    plans = {name: planned(name, path, backend) for name, path in folders.items()}
    if backend == "vllm":
        # What a plan refuses for its weights no engine is given. Of a kind that is unknown here a plan knows no more
        # than the files, which PyTorch's loads show: vLLM takes seconds to import the code of each.
        plans = {name: plan for name, plan in plans.items() if not MODELS[name].vllm_reads and may_differ(name)}
    with running(backend, runner_folder, python, program=PROGRAMS[backend], TORCH_COMPILE_DISABLE="1") as runner:
        reports = {name: reported(runner, folders[name], backend, plan) for name, plan in plans.items()}
    differ = {name: report for name, report in reports.items() if report != plans[name]}
    with open("/proc/cpuinfo", encoding="utf-8") as cpus:  # noqa: PTH123
        has_amx = "amx_tile" in cpus.read()
    if has_amx:
        # There vLLM's CPU build takes other kernels for some experts, which refuse 32-bit weights.
        no_32_bits = "RuntimeError: expect weight to be bfloat16"
        differ = {name: report for name, report in differ.items() if not str(report).startswith(no_32_bits)}
    assert differ == {}
    assert sum(isinstance(report, Facts) for report in reports.values()) >= {"pytorch": 60, "vllm": 45}[backend]


def may_differ(name: str) -> bool:
    """Whether vLLM may say otherwise of a folder than what its files hold."""
    model = MODELS[name]
    return not model.unknown or bool(model.vllm) or model.vllm_context != model.context or name == "olmo 2"
