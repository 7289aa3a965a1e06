"""The flags that stand for an experiment's settings, and the study that they make."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattdock.cli.options import Flag, takes
from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from wattdock.config import Study

File = Annotated[Path | None, typer.Argument(help="YAML file with one experiment or `experiments:`; none: defaults.")]
Settings = Mapping[str, Any]


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
    return takes(FLAGS, into="settings")(command)


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
