"""The flags that stand for an experiment's settings, and the study that they make."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattdock.commands.options import takes
from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from wattdock.config.expand import Study

File = Annotated[Path | None, typer.Argument(help="YAML file with one experiment or `experiments:`; none: defaults.")]
Backend = Annotated[str | None, typer.Option(help="Backend: the name of a folder in runners/.")]
Model = Annotated[str | None, typer.Option(help="Hugging Face id, ./folder, or shape:NAME (random weights).")]
BatchSize = Annotated[int | None, typer.Option(help="Requests in flight.")]
MaxTokens = Annotated[int | None, typer.Option("--max-output-tokens", help="Longest answer per request.")]
Prompts = Annotated[str | None, typer.Option(help="bundled, synthetic, or a JSONL file.")]
InputTokens = Annotated[int | None, typer.Option(help="Length of each synthetic prompt.")]
Requests = Annotated[int | None, typer.Option("--min-requests", help="A pass has at least this many requests.")]
Duration = Annotated[float | None, typer.Option("--min-duration-s", help="A pass lasts at least this long.")]
Restarts = Annotated[int | None, typer.Option(help="Fresh runners per experiment.")]
Passes = Annotated[int | None, typer.Option(help="Measured passes per restart.")]
Gpus = Annotated[str | None, typer.Option(help="auto, indices or UUIDs (0,1), or count:N.")]
Wait = Annotated[float | None, typer.Option("--wait", help="Seconds to wait for others who measure on this machine.")]
Accelerator = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
LauncherName = Annotated[str | None, typer.Option("--launcher", help="auto, docker or process.")]
Locked = Annotated[bool | None, typer.Option("--locked", help="Only the image in docker/images.lock, by content.")]
MeterName = Annotated[str | None, typer.Option("--meter", help="auto, nvml, zeus, rapl or none.")]
RunnerPython = Annotated[str | None, typer.Option(help="Interpreter that has the backend's packages already.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Any setting, pytorch.dtype=float16; wins over flags.")]

Settings = Mapping[str, Any]
FLAGS = {
    "backend": "backend",
    "model": "model",
    "batch_size": "workload.batch_size",
    "max_output_tokens": "workload.max_output_tokens",
    "prompts": "workload.prompts.source",
    "input_tokens": "workload.prompts.input_tokens",
    "min_requests": "workload.min_requests",
    "min_duration_s": "workload.min_duration_s",
    "restarts": "repeats.restarts",
    "passes": "repeats.passes",
    "gpus": "gpus",
    "wait": "wait_s",
    "accelerator": "accelerator",
    "launcher": "launcher",
    "locked": "container.locked",
    "meter": "meter",
    "runner_python": "runner_python",
}


def _settings(
    backend: Backend = None,
    model: Model = None,
    batch_size: BatchSize = None,
    max_output_tokens: MaxTokens = None,
    prompts: Prompts = None,
    input_tokens: InputTokens = None,
    min_requests: Requests = None,
    min_duration_s: Duration = None,
    restarts: Restarts = None,
    passes: Passes = None,
    gpus: Gpus = None,
    wait: Wait = None,
    accelerator: Accelerator = None,
    launcher: LauncherName = None,
    locked: Locked = None,
    meter: MeterName = None,
    runner_python: RunnerPython = None,
    set_: Set = None,
) -> None:
    """The flags of every command that takes experiments; only its signature is used."""


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` those flags, which it receives together as `settings`; its own of a name win."""
    return takes(_settings, into="settings")(command)


def study_of(file: Path | None, given: Settings) -> "Study":
    """Return the experiments of `file` under the flags given.

    Raises:
        ConfigError: A flag or the file is wrong.
    """
    from wattdock.config.load import load_study

    flags = {FLAGS[name]: value for name, value in given.items() if name in FLAGS and value is not None}
    written_as = {FLAGS[name]: "--" + name.replace("_", "-") for name in given if name in FLAGS}
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
