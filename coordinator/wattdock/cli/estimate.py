"""`wattdock estimate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.cli.options import RESULTS, Json, OutputDir, stored
from wattdock.errors import ConfigError, ExitCode, WattdockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.config import EngineMemory
    from wattdock.inputs import Comparison, Gpu

Model = Annotated[str | None, typer.Argument(help="A known model, OWNER/NAME of the hub, ./folder, or shape:NAME.")]
Gpus = Annotated[list[str] | None, typer.Option("--gpu", help="H100-80GB, …; none: this machine's, else all known.")]
Tensor = Annotated[int | None, typer.Option("--tp", min=1, help="GPUs that each layer is split over.")]
Pipeline = Annotated[int | None, typer.Option("--pp", min=1, help="Groups of GPUs that the layers are spread over.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Requests in flight.")]
Context = Annotated[int, typer.Option("--context", min=1, help="Tokens of each request, prompt and answer.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto (the checkpoint's own), bfloat16, float32, fp8, mxfp4, ….")]
Backend = Annotated[str, typer.Option("--backend", help="Whose way of using memory is meant.")]
Against = Annotated[
    list[str] | None,
    typer.Option("--against", help="Results, whose engines' own reports to compare with the estimate."),
]


def estimate(
    model: Model = None,
    gpu: Gpus = None,
    tp: Tensor = None,
    pp: Pipeline = None,
    batch: Batch = 1,
    context: Context = 2048,
    dtype: Dtype = "auto",
    backend: Backend = "vllm",
    against: Against = None,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Say what a model takes of a GPU's memory, and how few GPUs hold it; exit code 3 where a given split cannot."""
    from wattdock.config import Split
    from wattdock.host import folders
    from wattdock.inputs import Demand, UnknownArchitectureError, answer, figures_of, sized
    from wattdock.reports import print_answer, print_estimate_comparison, print_known

    if against:
        print_estimate_comparison(_comparisons(against, output_dir), as_json=as_json)
        return
    if model is None:
        print_known(as_json=as_json)
        return
    figures = figures_of(model, home=folders.wattdock_home())
    try:
        size = sized(figures.config, file_bytes=figures.weight_bytes, dtype=dtype)
    except UnknownArchitectureError as error:
        raise ConfigError(f"{figures.name} cannot be estimated: {error}") from error
    demand = Demand(requests=batch, context_tokens=context, prompt_tokens=context, certain_requests=batch)
    split = Split(tp or 1, pp or 1) if tp or pp else None
    found = answer(figures, size, _engine(backend), demand, _gpus(gpu or []), split)
    print_answer(found, as_json=as_json)
    if split and all(one.verdict == "cannot fit" for one in found.gpus):
        raise typer.Exit(ExitCode.PREFLIGHT)


def _comparisons(named: "Sequence[str]", output_dir: Path) -> "list[Comparison]":
    found, errors = [], []
    with stored(named, output_dir) as rows:
        for row in rows:
            try:
                found.append(_compared(row.folder.name, row.result))
            except WattdockError as error:
                errors.append(type(error)(f"{row.folder.name}: {error}"))
    if not found:
        raise errors[0]
    for one in errors:
        typer.echo(f"wattdock: left out: {one}", err=True)
    return found


def _compared(folder: str, result: "ExperimentResult") -> "Comparison":
    from wattdock.config import ModelSpec, section_class
    from wattdock.host import folders
    from wattdock.inputs import UnknownArchitectureError, compare, figures_of, known_figures

    model, environment = ModelSpec.model_validate(result.config["model"]), result.environment
    if environment is None or not environment.engine_args:
        raise ConfigError("no runner loaded its model there; name results of runners that did")
    engine = section_class(environment.backend).model_validate(result.config.get(environment.backend, {})).memory()
    if engine is None:
        raise ConfigError(f"backend {environment.backend} does not tell how it uses memory")
    figures = known_figures(model) or figures_of(model.label, home=folders.wattdock_home())
    name = f"{figures.name} {folder}"
    try:
        return compare(name, figures, engine, environment.engine_args, environment.parallelism)
    except UnknownArchitectureError as error:
        raise ConfigError(f"cannot be estimated: {error}") from error


def _engine(backend: str) -> "EngineMemory":
    from wattdock.config import section_class
    from wattdock.launch import find_runner

    find_runner(backend)
    if (engine := section_class(backend)().memory()) is None:
        raise ConfigError(f"--backend {backend} does not tell how it uses memory; take pytorch, vllm or tensorrt")
    return engine


def _gpus(names: "Sequence[str]") -> "list[Gpu]":
    """Return the GPUs that were named, else this machine's models, else every known one."""
    from wattdock.host import gpu_models, inventory
    from wattdock.inputs import Gpu

    if names:
        found = [gpu_models.named(name) for name in names]
    else:
        here = {one.name: one.vram_total_bytes for one in inventory().gpus if one.vram_total_bytes}
        if here:
            return [Gpu(name, memory_bytes) for name, memory_bytes in here.items()]
        found = list(gpu_models.known().values())
    return [Gpu(one.name, one.memory_bytes, verified=one.memory_read_at is not None) for one in found]
