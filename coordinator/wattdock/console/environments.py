"""`wattdock environments …`: what is installed where engines run as processes, and its lock."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from wattdock.console.options import RunnerPython, in_help
from wattdock.errors import StoreError
from wattdock.output import say

app = typer.Typer(help="Write a lock file of a backend's packages, to publish without containers.")


@app.callback()
def _keep_its_subcommand() -> None:
    """Keep the name of the only command."""


@app.command(epilog=in_help("environments lock vllm", "environments lock vllm --runner-python /opt/vllm/bin/python"))
def lock(
    backend: Annotated[str, typer.Argument(help="pytorch, vllm, …", metavar="BACKEND")],
    runner_python: RunnerPython = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The lock.  [default: BACKEND.lock]")] = None,
) -> None:
    """Lock the packages installed in a backend's environment.

    The lock holds each version and the hashes of the package index. `run --locked --launcher process --set
    package_lock=FILE` makes an environment from it, and checks each file before each start.
    """
    from wattdock.host import GpuInventory
    from wattdock.launch import lock_environment

    variant: Literal["cpu", "cuda"] = "cuda" if GpuInventory.here().gpus else "cpu"
    out = output or Path(f"{backend}.lock")
    try:
        made = lock_environment(backend, variant, runner_python, out, progress=partial(say, err=True))
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror}", "choose another --output") from error
    hardware = f"CPUs ({made.built_for_cpus})" if made.built_for_cpus else "this machine"
    say(f"{out}: {len(made.versions)} packages for {hardware}, sha256 {made.sha256[:12]}")
