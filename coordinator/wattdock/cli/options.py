"""Options that several commands share."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from wattdock.store import Row

# What a command's parameter defaults to that `takes` fills.
NOTHING: Mapping[str, Any] = {}

OutputDir = Annotated[Path, typer.Option(help="Where results are, or go.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
RESULTS = Path("results")
# What `results.chosen` understands.
NAMED = "Results, studies, bundles, or folders of results; of one in ./results its name's beginning will do."
Named = Annotated[list[str], typer.Argument(metavar="RESULTS", help=NAMED)]
Bundle = Annotated[Path, typer.Argument(help="A bundle: a .tar file, or the folder that one was unpacked to.")]


@contextmanager
def stored(named: Sequence[str], output_dir: Path) -> Iterator["list[Row]"]:
    """Yield the results that all of `named` mean; bundles among them are unpacked meanwhile.

    Raises:
        StoreError: As `chosen_rows`.
        ConfigError: As `chosen_rows`.
    """
    from wattdock.publish import opener
    from wattdock.store import chosen_rows

    with ExitStack() as unpacked:
        yield chosen_rows(named, output_dir, opener(unpacked))


def share(text: str, flag: str) -> float:
    """Return 0.03 for "3%" and for "0.03".

    Raises:
        ConfigError: It is no share from 0 to below 1.
    """
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise ConfigError(f"{flag} {text}: write a share such as 3% or 0.03, from 0 to below 1")
    return value


@dataclass(frozen=True)
class Flag:
    """A flag that may be left out, and is None then.

    Attributes:
        spelled: Only where it is not called as the parameter is, or is a `bool` without a `--no-…`.
        sets: Dotted name of the setting that it stands for, where it does.
    """

    kind: Any
    help: str
    spelled: str | None = None
    sets: str = ""

    def parameter(self, name: str) -> inspect.Parameter:
        """Return it as a command's parameter."""
        option = typer.Option(None, *([self.spelled] if self.spelled else []), help=self.help)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Parameter(name, kind, default=option, annotation=self.kind | None)


def takes(flags: Mapping[str, Flag], into: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these flags, by parameter, which it receives as one mapping, its own parameter `into`.

    Flags that the command has itself win. They follow its first parameter where that is an argument.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command)
        shared = {name: flag.parameter(name) for name, flag in flags.items() if name not in own.parameters}

        @functools.wraps(command)
        def with_flags(**given: Any) -> None:
            command(**{into: {name: given.pop(name) for name in shared}}, **given)

        before = list(own.parameters).index(into)
        rest = [one for name, one in own.parameters.items() if name != into]
        parameters = [*rest[:before], *shared.values(), *rest[before:]]
        with_flags.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {one.name: one.annotation for one in parameters}
        return with_flags

    return decorate
