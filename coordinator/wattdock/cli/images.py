"""Arguments of `wattdock images …`, nothing else."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wattdock.cli.options import Json
from wattdock.errors import ConfigError, ExitCode, PreflightError

if TYPE_CHECKING:
    from wattdock.launch.images import ImageStatus

app = typer.Typer(help="Build images, and pin them by content.")

Names = Annotated[list[str] | None, typer.Argument(help="pytorch, vllm, …; none: all.", metavar="[NAME]...")]
Name = Annotated[str, typer.Argument(help="pytorch, vllm, …")]
Variant = Annotated[Literal["cuda", "cpu"], typer.Option(help="Which of a backend's requirement files.")]
Base = Annotated[str | None, typer.Option(help="Base image; none: the Dockerfile's, or for cpu Debian's Python.")]
Client = Annotated[str, typer.Option(help="The client that builds.")]
PipConf = Annotated[Path | None, typer.Option(help="pip configuration for the build; does not get into the image.")]
BuildOptions = Annotated[str, typer.Option(help="More options of the client's build: '--network=none --quiet'.")]
To = Annotated[str, typer.Option(help="Registry, with a prefix where it has one: ghcr.io/team.")]
Offline = Annotated[bool, typer.Option("--offline", help="Ask no registry, and say that it was not asked.")]
Registry = Annotated[str | None, typer.Option(help="Beginning of the digest to lock where several registries have it.")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show which images are here, and which are locked."""
    from wattdock.reports import show

    show(_statuses(None, ask_registry=None), as_json=as_json)


@app.command()
def verify(names: Names = None, offline: Offline = False, as_json: Json = False) -> None:
    """Hold the lock against the engine's images, this checkout, and the registries that have the locked digests.

    Exit code 3 where anything differs, is open, or could not be checked.
    """
    from wattdock.reports import show

    found = _statuses(names, ask_registry=not offline)
    show(found, as_json=as_json)
    if any(image.differences or image.unresolved or (image.unchecked and not offline) for image in found):
        raise typer.Exit(ExitCode.PREFLIGHT)


@app.command()
def build(
    name: Name,
    variant: Variant = "cuda",
    base: Base = None,
    client: Client = "docker",
    pip_conf: PipConf = None,
    build_options: BuildOptions = "",
) -> None:
    """Build one image from this checkout; its base is pulled where it is not here."""
    from wattdock.launch.images import build_image, read_lock

    lock = read_lock(may_be_absent=True)
    build_image(name, lock, variant=variant, base=base, client=client, pip_conf=pip_conf, options=build_options)


@app.command()
def pull(names: Names = None) -> None:
    """Get locked images from their registries, by digest, and see that they are the locked ones."""
    from wattdock.launch.images import pull_image, read_lock

    lock = read_lock(may_be_absent=True)
    pushed = [name for name, entry in lock.images.items() if entry.repo_digest]
    if not (names or pushed):
        raise ConfigError("the lock holds no image that a registry has; see: wattdock images list")
    for name in names or pushed:
        typer.echo(f"{name}: {pull_image(name, lock)}")


@app.command()
def push(name: Name, to: To) -> None:
    """Give an image that was built here to a registry; prints the digest by which everybody can get it."""
    from wattdock.launch.images import push_image

    typer.echo(push_image(name, to))


@app.command()
def lock(names: Names = None, registry: Registry = None) -> None:
    """Write what is here into the lock.

    All of the images named, or none: exit code 3 where one cannot be locked, with every such one and why.
    """
    from wattdock.launch.images import lock_images, read_lock

    def tell(error: PreflightError) -> None:
        typer.echo(f"wattdock: {error}", err=True)

    entries = lock_images(names or (), read_lock(may_be_absent=True), registry=registry, tell=tell)
    for name, entry in entries.items():
        typer.echo(f"{name}: {entry.digest or 'not locked'}")
        for key, why in entry.open_points.items():
            typer.echo(f"{name}: {key} is open: {why}", err=True)


def _statuses(names: list[str] | None, *, ask_registry: bool | None) -> list["ImageStatus"]:
    from wattdock.launch.images import image_statuses, read_lock

    return image_statuses(names or (), read_lock(may_be_absent=True), ask_registry=ask_registry)
