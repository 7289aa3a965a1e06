"""Options that several commands share, and the flags that stand for an experiment's settings."""

import functools
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattdock.errors import ConfigError
from wattdock.files import TAR, expanded, real_path
from wattdock.output import say
from wattdock.text import listed
from wattdock_proto.asking import URL_VARIABLE

if TYPE_CHECKING:
    from wattdock.config import Study
    from wattdock.store import StoredResult

# Settings of the backend's section, whatever its name; see `load_study`.
ENGINE = "engine"
# Setting that only synthetic prompts have.
LENGTH = "workload.prompts.input_tokens"
RESULTS = Path("results")
# Names that `store.find_results` understands.
RESULTS_HELP = (
    "Results, studies, STUDY:EXPERIMENT, bundles, or folders of results; in the results folder, the beginning of a "
    "name is enough."
)


def _folder(text: str | Path) -> Path:
    if not str(text):
        raise ConfigError("--output-dir is empty", "name a folder")
    return expanded(text)


OutputDir = Annotated[Path, typer.Option(help="Folder of results.", parser=_folder, metavar="FOLDER")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Again = Annotated[bool, typer.Option("--again", help="Analyse and audit the stored records again.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
File = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="YAML file of an experiment or a study; defaults without it.")
]
Named = Annotated[list[str], typer.Argument(metavar="RESULTS", help=RESULTS_HELP)]
LogTo = Annotated[
    str | None, typer.Option(metavar="TRACKER", help="Log results at the end, to mlflow:URI or wandb:PROJECT.")
]
RunnerPython = Annotated[
    Path | None, typer.Option(help="Python interpreter that has the backend's packages installed.")
]


def flag(help_text: str, *names: str, setting: str | None = None, metavar: str | None = None) -> Any:
    """Return a field of a dataclass of flags: an option, by `names` or the field's, for a dotted `setting`, or None."""
    option = typer.Option(None, *names, help=help_text, metavar=metavar)
    return field(default=None, metadata={"option": option, "setting": setting})


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` an option for each field of the dataclass that its parameter `flags` is annotated with.

    An option of the same name that the command declares itself wins.
    """
    declared = inspect.signature(command).parameters
    flags_class = declared["flags"].annotation
    options = [option for option in fields(flags_class) if option.name not in declared]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        command(flags=flags_class(**{option.name: values.pop(option.name) for option in options}), **values)

    own = [
        declared["flags"].replace(name=option.name, default=option.metadata["option"], annotation=option.type)
        for option in options
    ]
    parameters = [each for name, of in declared.items() for each in (own if name == "flags" else [of])]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


@dataclass(frozen=True)
class SettingFlags:
    """Flags that stand for settings of an experiment."""

    backend: str | None = flag("Engine, such as vllm; a wrong name lists all.  [default: pytorch]", setting="backend")
    url: str | None = flag(
        "Measure the OpenAI-compatible server that runs there, such as http://127.0.0.1:8000.", setting="url.base_url"
    )
    model: str | None = flag(
        "OWNER/NAME on the Hugging Face hub, ./FOLDER, or shape:NAME for random weights.  "
        "[default: smollm2-135m-instruct]",
        setting="model",
    )
    dtype: str | None = flag("Precision, as the backend names it.  [default: auto]", setting=f"{ENGINE}.dtype")
    batch_size: int | None = flag("Requests in flight.  [default: 4]", setting="workload.batch_size")
    max_output_tokens: int | None = flag(
        "Most output tokens per request.  [default: 64]", setting="workload.max_output_tokens"
    )
    prompts: str | None = flag(
        "bundled, synthetic, or a JSONL or JSON file.  [default: bundled]", setting="workload.prompts.source"
    )
    num_prompts: int | None = flag(
        "Prompts of a pass; otherwise as many as it needs, or a whole file.", setting="workload.prompts.count"
    )
    input_tokens: int | None = flag("Tokens of each synthetic prompt.  [default: 512]", setting=LENGTH)
    min_requests: int | None = flag("Least number of requests of a pass.", setting="workload.min_requests")
    min_duration_s: float | None = flag("Least length of a pass, in seconds.", setting="workload.min_duration_s")
    restarts: int | None = flag("Fresh runners per experiment.  [default: 1]", setting="repeats.restarts")
    passes: int | None = flag("Measured passes per restart.  [default: 2]", setting="repeats.passes")
    gpus: str | None = flag("auto, count:N, indices or UUIDs, as in 0,1.  [default: auto]", setting="gpus")
    wait: float | None = flag(
        "Seconds to wait for other measurements on this machine to end.  [default: 0]", setting="wait_s"
    )
    accelerator: str | None = flag("auto, cpu or cuda.  [default: auto]", setting="accelerator")
    launcher: str | None = flag(
        "How runners start, such as process; auto takes containers where it can.  [default: auto]", setting="launcher"
    )
    locked: bool | None = flag(
        "Use only the locked image or, with --launcher process, locked packages.",
        "--locked",
        setting="container.locked",
    )
    meter: str | None = flag("Source of energy readings, such as nvml, or none.  [default: auto]", setting="meter")
    runner_python: str | None = flag(
        "Python interpreter that has the backend's packages installed.", setting="runner_python"
    )
    assignments: list[str] | None = flag(
        "Any setting, as in pytorch.dtype=float16; overrides other flags.", "--set", metavar="NAME=VALUE"
    )


def in_help(*examples: str) -> str:
    """Return commands as they stand at the end of a help text, without the word `wattdock`."""
    # The mark keeps lines as they are.
    return "\n".join(("\b", "Examples:", *(f"  wattdock {words}" for words in examples)))


def typed_again(*more: str) -> str:
    """Return the command that this process was called by, as it would be typed, with more words."""
    return shlex.join(["wattdock", *sys.argv[1:], *more])


def named(name: str, output_dir: Path) -> str:
    """Return the last words of a command that names a result or a study."""
    return name if output_dir == RESULTS else f"{name} --output-dir {shlex.quote(str(output_dir))}"


def study_of(file: Path | dict[str, Any] | None, flags: Any, *, publishable: bool = False) -> "Study":
    """Return the experiments of `file`, or of what it holds, each overridden by `flags`; see `load_study`.

    Args:
        flags: A dataclass of fields that `flag` made, with `gpus` and `assignments` among them.

    Raises:
        ConfigError: A flag or the file is wrong.
    """
    from wattdock.config import load_study, parse_yaml

    if isinstance(file, Path) and file.suffix == TAR:
        shown = f"`wattdock reproduce {file}` measures its study again, `wattdock show {file}` shows its results"
        raise ConfigError(f"{file}: a bundle is no study", shown)
    settings: dict[str, Any] = {}
    written_as = {}
    for option in fields(flags):
        setting, value = option.metadata["setting"], getattr(flags, option.name)
        if setting and value is not None:
            settings[setting] = value
            written_as[setting] = "--" + option.name.replace("_", "-")
    if flags.gpus and flags.gpus.startswith("count:"):
        settings["gpus"] = {"count": parse_yaml(flags.gpus.removeprefix("count:"), "--gpus")[0]}
    elif flags.gpus and flags.gpus != "auto":
        settings["gpus"] = [parse_yaml(part, "--gpus")[0] for part in flags.gpus.split(",")]
    for assignment in flags.assignments or ():
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment}: write NAME=VALUE")
        settings[name] = parse_yaml(value, f"--set {name}")[0]
        written_as.pop(name, None)
    study = load_study(file, settings, written_as=written_as, publishable=publishable)
    if getattr(flags, "url", None):
        # Whoever names the server on the command line means it to get the key.
        os.environ[URL_VARIABLE] = study.experiments[0].section.server_url
    sources = {config.prompts.source or "" for config in study.experiments}
    if LENGTH in settings and "synthetic" not in sources:
        given = written_as.get(LENGTH, f"--set {LENGTH}")
        kinds = " and ".join(sorted(sources))
        raise ConfigError(f"{given} has no effect: the prompts are {kinds}", "add --prompts synthetic, or drop it")
    return study


@contextmanager
def open_results(
    names: Sequence[str],
    output_dir: Path,
    output: Path | None = None,
    files: Sequence[Path] | None = None,
    *,
    again: bool | None = None,
) -> Iterator["list[StoredResult]"]:
    """Yield the results that `names` stand for; bundles among them stay unpacked until the end.

    Args:
        output: The file that a command will write.
        files: What it reads besides.
        again: Whether results are analysed and audited anew, as this version does; None where a command cannot.

    Raises:
        ConfigError, StoreError: As `find_results`, the output would replace what is read, or records allow no analysis.
    """
    from wattdock.publish import open_bundle
    from wattdock.store import find_results

    with ExitStack() as unpacked:
        # Named twice, a bundle's results are still the same.
        @functools.cache
        def unpack(bundle: Path) -> Path:
            return unpacked.enter_context(open_bundle(bundle)).folder

        results = find_results(names, output_dir, unpack, lambda line: say(line, err=True))
        # BUNDLE.tar:EXPERIMENT reads the bundle.
        read = [*map(Path, names), *(Path(re.sub(r"(?<=\.tar):.*", "", name)) for name in names), *(files or ())]
        places = {real_path(result.folder) for result in results}
        if output and (real_path(output).parent in places or real_path(output) in set(map(real_path, read))):
            raise ConfigError(f"{output} would replace a file that the command reads", "name another file to write")
        yield [stored.analysed_again() for stored in results] if again else results
        if again is False and any(stored.analysed_by for stored in results):
            by = "analysed by another version of wattdock; --again analyses the records as this version does"
            say(f"{listed(names)}: {by}", err=True)


def logger_to(target: str | None) -> "Callable[[Sequence[StoredResult]], None]":
    """Return what logs results to a tracker, and names those that could not be logged; without one, nothing does.

    Raises:
        ConfigError, ModuleNotFoundError: As `tracker`.
    """
    from wattdock.forms import tracker

    return (lambda _: None) if target is None else tracker(target, lambda line: say(line, err=True))


def parse_fraction(text: str, option: str) -> float:
    """Return 0.03 for "3%" and for "0.03".

    Raises:
        ConfigError: The text is no share from 0 to below 1.
    """
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise ConfigError(f"{option} {text}: write a share such as 3% or 0.03, from 0 to below 1")
    return value
