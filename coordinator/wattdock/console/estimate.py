"""`wattdock estimate`: how much memory a model needs."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.console.options import Json
from wattdock.console.views import show
from wattdock.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

Model = Annotated[
    str, typer.Argument(help="A known model, OWNER/NAME on the Hugging Face hub, ./FOLDER, or shape:NAME.")
]
Gpus = Annotated[
    list[str] | None,
    typer.Option("--gpu-model", help="As in H100-80GB; may be repeated.  [default: this machine's, or all known]"),
]
Tensor = Annotated[int | None, typer.Option("--tp", min=1, help="Tensor parallelism: GPUs that share each layer.")]
Pipeline = Annotated[
    int | None, typer.Option("--pp", min=1, help="Pipeline parallelism: stages that the layers are divided into.")
]
PerNode = Annotated[int | None, typer.Option(min=1, help="How many GPUs a node has.  [default: this machine's, or 8]")]
Batch = Annotated[int, typer.Option("--batch-size", min=1, help="Requests in flight.")]
Context = Annotated[int, typer.Option("--context", min=1, help="Tokens of each request, prompt and output together.")]
Dtype = Annotated[
    str, typer.Option(help="Precision of the weights: auto (the checkpoint's), bfloat16, float32, fp8, mxfp4, ….")
]
Backend = Annotated[str, typer.Option(help="Backend whose memory use is estimated.")]

USUAL_PER_NODE = 8


def estimate(
    model: Model,
    gpu: Gpus = None,
    tp: Tensor = None,
    pp: Pipeline = None,
    gpus_per_node: PerNode = None,
    batch: Batch = 1,
    context: Context = 2048,
    dtype: Dtype = "auto",
    backend: Backend = "vllm",
    as_json: Json = False,
) -> None:
    """Estimate the GPU memory that a model needs.

    Names the fewest GPUs that hold it, and how many nodes where one is not enough.
    Exit code 3 if the split of --tp and --pp fits on no GPU.
    """
    from wattdock.config import ExperimentConfig, Split
    from wattdock.host import folders
    from wattdock.inputs import Estimate
    from wattdock.launch import find_runner

    find_runner(backend)
    if (engine := ExperimentConfig(backend=backend).section.memory()) is None:
        raise ConfigError(f"--backend {backend} does not tell how it uses memory", "take pytorch, vllm or tensorrt")
    split = Split(tp or 1, pp or 1) if tp or pp else None
    answer = Estimate.of(
        model,
        engine,
        _gpus(gpu or [], gpus_per_node),
        batch=batch,
        context_tokens=context,
        home=folders.wattdock_home(),
        dtype=dtype,
        split=split,
    )
    show(answer, as_json=as_json)
    if split and all(memory.verdict == "cannot fit" for memory in answer.gpus.values()):
        raise typer.Exit(ExitCode.PREFLIGHT)


def _gpus(names: "Sequence[str]", per_node: int | None) -> dict[str, tuple[int, int]]:
    """Return the memory in bytes of the GPUs that are named; without names of this machine's, or of all known.

    Also how many of a kind a node has: as many as this machine has of its own.
    """
    from wattdock.host import GpuInventory, gpu_models

    gpus = () if names else GpuInventory.here().gpus
    count = Counter(gpu.name for gpu in gpus)
    if own := {gpu.name: (gpu.vram_total_bytes, per_node or count[gpu.name]) for gpu in gpus if gpu.vram_total_bytes}:
        return own
    models = [gpu_models.find(name) for name in names] or gpu_models.catalogue().values()
    return {model.name: (model.memory_bytes, per_node or USUAL_PER_NODE) for model in models}
