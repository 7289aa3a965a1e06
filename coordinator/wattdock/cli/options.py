"""Options that several commands share, and the flags that stand for an experiment's settings.

A flag is called as the setting that it stands for.
"""

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
    from wattdock.config import Study
    from wattdock.store import StoredResult

# What a command's parameter defaults to that `with_flags` fills.
NOTHING: Mapping[str, Any] = {}

OutputDir = Annotated[Path, typer.Option(help="Where results are, or go.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
File = Annotated[Path | None, typer.Argument(help="YAML file with one experiment or `experiments:`; none: defaults.")]
Settings = Mapping[str, Any]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
RESULTS = Path("results")
# What `store.find_results` understands.
NAMED = "Results, studies, bundles, or folders of results; of one in ./results its name's beginning will do."
Named = Annotated[list[str], typer.Argument(metavar="RESULTS", help=NAMED)]


@contextmanager
def open_results(named: Sequence[str], output_dir: Path) -> Iterator["list[StoredResult]"]:
    """Yield the results that all of `named` mean; bundles among them are unpacked meanwhile.

    Raises:
        StoreError: As `find_results`.
        ConfigError: As `find_results`.
    """
    from wattdock.publish import open_bundle
    from wattdock.store import find_results

    with ExitStack() as unpacked:
        yield find_results(named, output_dir, lambda bundle: unpacked.enter_context(open_bundle(bundle)).folder)


def parse_fraction(text: str, flag: str) -> float:
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


def with_flags(flags: Mapping[str, Flag], into: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these flags, by parameter, which it receives as one mapping, its own parameter `into`.

    Flags that the command has itself win. They follow its first parameter where that is an argument.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command)
        shared = {name: flag.parameter(name) for name, flag in flags.items() if name not in own.parameters}

        @functools.wraps(command)
        def flagged(**given: Any) -> None:
            command(**{into: {name: given.pop(name) for name in shared}}, **given)

        before = list(own.parameters).index(into)
        rest = [parameter for name, parameter in own.parameters.items() if name != into]
        parameters = [*rest[:before], *shared.values(), *rest[before:]]
        flagged.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        flagged.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return flagged

    return decorate


# By parameter.
FLAGS = {
    "backend": Flag(str, "Backend: the name of a folder in runners/.", sets="backend"),
    "model": Flag(str, "Hugging Face id, ./folder, or shape:NAME (random weights).", sets="model"),
    "batch_size": Flag(int, "Requests in flight.", sets="workload.batch_size"),
    "max_output_tokens": Flag(int, "Longest answer per request.", sets="workload.max_output_tokens"),
    "prompts": Flag(str, "bundled, synthetic, or a JSONL file.", sets="workload.prompts.source"),
    "input_tokens": Flag(int, "Length of each synthetic prompt.", sets="workload.prompts.input_tokens"),
    "min_requests": Flag(int, "A pass has at least this many requests.", sets="workload.min_requests"),
    "min_duration_s": Flag(float, "A pass lasts at least this long.", sets="workload.min_duration_s"),
    "restarts": Flag(int, "Fresh runners per experiment.", sets="repeats.restarts"),
    "passes": Flag(int, "Measured passes per restart.", sets="repeats.passes"),
    "gpus": Flag(str, "auto, indices or UUIDs (0,1), or count:N.", sets="gpus"),
    "wait": Flag(float, "Seconds to wait for others who measure on this machine.", sets="wait_s"),
    "accelerator": Flag(str, "auto, cpu or cuda.", sets="accelerator"),
    "launcher": Flag(str, "auto, docker or process.", sets="launcher"),
    "locked": Flag(bool, "Only the image in docker/images.lock, by content.", "--locked", sets="container.locked"),
    "meter": Flag(str, "auto, nvml, zeus, rapl or none.", sets="meter"),
    "runner_python": Flag(str, "Interpreter that has the backend's packages already.", sets="runner_python"),
    "set_": Flag(list[str], "Any setting, pytorch.dtype=float16; wins over flags.", "--set"),
}


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` those flags, which it receives together as `settings`; its own of a name win."""
    return with_flags(FLAGS, into="settings")(command)


def study_of(file: Path | None, given: Settings) -> "Study":
    """Return the experiments of `file` under the flags given.

    Raises:
        ConfigError: A flag or the file is wrong.
    """
    from wattdock.config import load_study

    settings = {name: FLAGS[name].sets for name in given if FLAGS[name].sets}
    flags = {setting: given[name] for name, setting in settings.items() if given[name] is not None}
    written_as = {setting: "--" + name.replace("_", "-") for name, setting in settings.items()}
    if "gpus" in flags:
        flags["gpus"] = _gpus(flags["gpus"])
    for assignment in given["set_"] or ():
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment}: write NAME=VALUE")
        flags[name] = _yaml_value(value)
        written_as.pop(name, None)
    return load_study(file, flags, written_as=written_as)


def _gpus(text: str) -> Any:
    if text.startswith("count:"):
        return {"count": _yaml_value(text.removeprefix("count:"))}
    return text if text == "auto" else [_yaml_value(part) for part in text.split(",")]


def _yaml_value(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{text!r} is not a value: {error}; quote it") from error
