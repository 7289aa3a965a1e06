"""Arguments of `wattdock images …`, nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wattdock.cli.options import Json
from wattdock.errors import ConfigError, ExitCode, PreflightError

if TYPE_CHECKING:
    from wattdock.launch.images import ImageStatus, LockedImage, ReadLock

app = typer.Typer(help="Build images, and pin them by content.")

Names = Annotated[list[str] | None, typer.Argument(help="pytorch, vllm, …; none: all.", metavar="[NAME]...")]
Name = Annotated[str, typer.Argument(help="pytorch, vllm, …")]
Variant = Annotated[Literal["cuda", "cpu"], typer.Option(help="Which of a backend's requirement files.")]
Base = Annotated[str | None, typer.Option(help="Base image; none: the Dockerfile's, or for cpu Debian's Python.")]
Client = Annotated[str, typer.Option(help="The client that builds.")]
PipConf = Annotated[Path | None, typer.Option(help="pip configuration for the build; does not get into the image.")]
BuildOptions = Annotated[str, typer.Option(help="More options of the client's build: '--network=none --quiet'.")]
Bases = Annotated[bool, typer.Option("--bases", help="Get what they are built on instead, where it is not here.")]
To = Annotated[str, typer.Option(help="Registry, with a prefix where it has one: ghcr.io/team.")]
Offline = Annotated[bool, typer.Option("--offline", help="Ask no registry, and say that it was not asked.")]
Registry = Annotated[str | None, typer.Option(help="Beginning of the digest to lock where several registries have it.")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """Show which images are here, and which are locked."""
    from wattdock.reports import print_images

    print_images(_statuses(None, _lock().images), as_json=as_json)


@app.command()
def verify(names: Names = None, offline: Offline = False, as_json: Json = False) -> None:
    """Hold the lock against the engine's images, this checkout, and the registries that have the locked digests.

    Exit code 3 where anything differs, is open, or could not be checked.
    """
    from wattdock.launch.images import asked_of_registry
    from wattdock.reports import print_images

    entries = _lock().images
    found = [asked_of_registry(one, entries.get(one.name), offline=offline) for one in _statuses(names, entries)]
    print_images(found, as_json=as_json)
    if any(one.differences or one.unresolved or (one.unchecked and not offline) for one in found):
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
    """Build one image from this checkout; pulls nothing."""
    from wattdock.launch.images import Builder, base_name, build_image, find_base

    on = find_base(name, base_name(name, variant=variant, given=base), _lock().images)
    build_image(name, variant=variant, base=on, builder=Builder(client, pip_conf, build_options))


@app.command()
def pull(names: Names = None, bases: Bases = False, variant: Variant = "cuda", base: Base = None) -> None:
    """Get locked images from their registries, by digest, and see that they are the locked ones."""
    from wattdock.launch.images import base_name, pull_base, pull_locked

    lock = _lock()
    for name in _chosen(names) if bases or names else _pushed(lock.images):
        if bases:
            wanted = base_name(name, variant=variant, given=base)
            done = "pulled" if pull_base(name, wanted, lock.images) else "is here"
            typer.echo(f"{name}: base {wanted} {done}", err=True)
            continue
        typer.echo(f"{name}: {pull_locked(name, lock)}")


@app.command()
def push(name: Name, to: To) -> None:
    """Give an image that was built here to a registry; prints the digest by which everybody can get it."""
    from wattdock.launch.images import push_image

    typer.echo(push_image(name, to))


@app.command()
def lock(names: Names = None, registry: Registry = None) -> None:
    """Write what is here into the lock, and ask registries for the digests of bases that it lacks.

    All of the images named, or none: exit code 3 where one cannot be locked, with every such one and why.
    """
    from wattdock.launch.images import new_entries, write_lock

    def tell(error: PreflightError) -> None:
        typer.echo(f"wattdock: {error}", err=True)

    before = _lock()
    after = new_entries(_chosen(names), before.images, registry=registry, tell=tell)
    write_lock(before.path, {**before.images, **after})
    for name, entry in after.items():
        typer.echo(f"{name}: {entry.repo_digest or entry.image_id or 'not locked'}")
        for key, why in entry.unresolved.items():
            typer.echo(f"{name}: {key} is open: {why}", err=True)


def _statuses(names: list[str] | None, entries: Mapping[str, "LockedImage"]) -> list["ImageStatus"]:
    from wattdock.launch.images import image_status

    every = _chosen(names) if names else sorted({*_chosen(None), *entries})
    return [image_status(name, entries.get(name)) for name in every]


def _chosen(names: list[str] | None) -> list[str]:
    """Return the images that were named, or all that have a Dockerfile."""
    from wattdock.launch.images import image_names

    return names or [*image_names()]


def _pushed(entries: Mapping[str, "LockedImage"]) -> list[str]:
    found = [name for name, entry in entries.items() if entry.repo_digest]
    if not found:
        raise ConfigError("the lock holds no image that a registry has; see: wattdock images list")
    return found


def _lock() -> "ReadLock":
    """Return the lock as it is now; an empty one where none was written yet."""
    from wattdock.launch.images import ReadLock, lock_path, read_lock

    path = lock_path()
    return read_lock(path) if path.exists() else ReadLock(path, {}, sha256="")
