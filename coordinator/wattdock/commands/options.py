"""Options that several commands share."""

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

Given = dict[str, Any]
# What a command's parameter defaults to that `takes` fills.
NOTHING: Mapping[str, Any] = {}

OutputDir = Annotated[Path, typer.Option(help="Where results are, or go.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
RESULTS = Path("results")


def takes(flags: Callable[..., None], into: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags in the signature of `flags`, which it receives as one mapping, its parameter `into`.

    Flags that the command has itself win. They follow its first parameter where that is an argument.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command)
        every = inspect.signature(flags).parameters.items()
        shared = {name: one for name, one in every if name not in own.parameters}

        @functools.wraps(command)
        def with_flags(**given: Any) -> None:
            command(**{into: {name: given.pop(name) for name in shared}}, **given)

        before = list(own.parameters).index(into)
        rest = [one for name, one in own.parameters.items() if name != into]
        parameters = [*rest[:before], *shared.values(), *rest[before:]]
        with_flags.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {**flags.__annotations__, **command.__annotations__}
        return with_flags

    return decorate
