"""`wattdock images …`: container images and their lock."""

from typing import Annotated, Literal

import typer

from wattdock.console.options import in_help
from wattdock.errors import ConfigError
from wattdock.output import say

app = typer.Typer(help="Build, lock and pull container images.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="pytorch, vllm, …")]
Variant = Annotated[Literal["cuda", "cpu"], typer.Option(help="Hardware that the image is for.")]
Base = Annotated[str | None, typer.Option(help="Base image.  [default: the Dockerfile's; for cpu Debian's Python]")]
BuildOptions = Annotated[str, typer.Option(help="Further options of `docker build`, as in '--network=none --quiet'.")]
Registry = Annotated[
    str | None, typer.Option(help="Registry to lock if several have the image: the beginning of its name.")
]


@app.command(epilog=in_help("images build vllm", "images build pytorch --variant cpu"))
def build(name: Name, variant: Variant = "cuda", base: Base = None, build_options: BuildOptions = "") -> None:
    """Build an image from this checkout, pulling its base if needed."""
    from wattdock.launch.images import build_image

    build_image(name, variant=variant, base=base, options=build_options)


@app.command(epilog=in_help("images lock vllm", "images lock pytorch vllm --registry registry.example.org"))
def lock(
    names: Annotated[list[str], typer.Argument(help="pytorch, vllm, …", metavar="NAME")], registry: Registry = None
) -> None:
    """Lock images on this machine by digest.

    If one cannot be locked, none is.
    """
    from wattdock.launch.images import lock_images, read_lock

    for name, entry in lock_images(names, read_lock(), registry=registry).items():
        say(f"{name}: {entry.digest}")
        for warning in entry.warnings:
            say(f"{name}: {warning}", err=True)


@app.command(epilog=in_help("images pull", "images pull vllm"))
def pull(
    names: Annotated[list[str] | None, typer.Argument(help="pytorch, vllm, …  [default: all]", metavar="NAME")] = None,
) -> None:
    """Get locked images from their registries, by digest."""
    from wattdock.launch.images import pull_image, read_lock

    images = read_lock()
    names = names or [name for name, entry in images.images.items() if entry.repo_digest]
    if not names:
        remedy = "push one, then: wattdock images lock NAME"
        raise ConfigError(f"{images.path} holds no image that a registry has", remedy)
    for name in names:
        say(f"{name}: {pull_image(name, images)} is here")
