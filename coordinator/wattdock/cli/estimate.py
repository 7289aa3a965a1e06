"""`wattdock estimate`."""

from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.cli.options import Json
from wattdock.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import EngineMemory

Model = Annotated[str | None, typer.Argument(help="A known model, OWNER/NAME of the hub, ./folder, or shape:NAME.")]
Gpus = Annotated[list[str] | None, typer.Option("--gpu", help="H100-80GB, …; none: this machine's, else all known.")]
Tensor = Annotated[int | None, typer.Option("--tp", min=1, help="GPUs that each layer is split over.")]
Pipeline = Annotated[int | None, typer.Option("--pp", min=1, help="Groups of GPUs that the layers are spread over.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Requests in flight.")]
Context = Annotated[int, typer.Option("--context", min=1, help="Tokens of each request, prompt and answer.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto (the checkpoint's own), bfloat16, float32, fp8, mxfp4, ….")]
Backend = Annotated[str, typer.Option("--backend", help="Whose way of using memory is meant.")]


def estimate(
    model: Model = None,
    gpu: Gpus = None,
    tp: Tensor = None,
    pp: Pipeline = None,
    batch: Batch = 1,
    context: Context = 2048,
    dtype: Dtype = "auto",
    backend: Backend = "vllm",
    as_json: Json = False,
) -> None:
    """Say what a model takes of a GPU's memory, and how few GPUs hold it; exit code 3 where a given split cannot."""
    from wattdock.config import Split
    from wattdock.host import folders
    from wattdock.inputs import Estimate
    from wattdock.reports import KnownHardware, show

    if model is None:
        show(KnownHardware(), as_json=as_json)
        return
    split = Split(tp or 1, pp or 1) if tp or pp else None
    answer = Estimate.of(
        model,
        _engine(backend),
        _gpus(gpu or []),
        batch=batch,
        context_tokens=context,
        home=folders.wattdock_home(),
        dtype=dtype,
        split=split,
    )
    show(answer, as_json=as_json)
    if split and all(memory.verdict == "cannot fit" for memory in answer.gpus.values()):
        raise typer.Exit(ExitCode.PREFLIGHT)


def _engine(backend: str) -> "EngineMemory":
    from wattdock.config import ExperimentConfig
    from wattdock.launch import find_runner

    find_runner(backend)
    if (engine := ExperimentConfig(backend=backend).section.memory()) is None:
        raise ConfigError(f"--backend {backend} does not tell how it uses memory; take pytorch, vllm or tensorrt")
    return engine


def _gpus(names: "Sequence[str]") -> dict[str, int]:
    """Return the memory in bytes of the GPUs that were named, else of this machine's, else of every known one."""
    from wattdock.host import GpuInventory, gpu_models

    gpus = () if names else GpuInventory.here().gpus
    if sizes := {gpu.name: gpu.vram_total_bytes for gpu in gpus if gpu.vram_total_bytes}:
        return sizes
    models = [gpu_models.named(name) for name in names] or gpu_models.known().values()
    return {model.name: model.memory_bytes for model in models}
