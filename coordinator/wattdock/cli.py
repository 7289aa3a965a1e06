"""Arguments and exit codes, nothing else. What a command needs is imported inside it: `--help` must be quick."""

import functools
import inspect
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from wattdock.errors import ConfigError, ExitCode, WattdockError
from wattdock.results_cli import app as results_app

if TYPE_CHECKING:
    from io import TextIOWrapper

    from wattdock.config.expand import Study
    from wattdock.results.result import ExperimentResult
    from wattdock.run import Run

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Measure what LLM inference costs in energy.",
)
app.add_typer(results_app, name="results")

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
MeterName = Annotated[str | None, typer.Option("--meter", help="auto, nvml, zeus, rapl or none.")]
RunnerPython = Annotated[str | None, typer.Option(help="Interpreter that has the backend's packages already.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Any setting, pytorch.dtype=float16; wins over flags.")]
OutputDir = Annotated[Path, typer.Option(help="Where results go.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
RequirePublishable = Annotated[bool, typer.Option(help="Exit with 8 unless every result may be published.")]
Resume = Annotated[bool, typer.Option(help="Go on with this study where it was left; measures nothing twice.")]
RetryFailed = Annotated[bool, typer.Option(help="Like --resume, and measure what has failed again.")]

Settings = dict[str, Any]
NO_SETTINGS: Settings = {}
# More results than these are shown as a table only.
SHOWN_WHOLE = 3
# Typer keeps click's UsageError, the base of this one, to itself.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
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
    meter: MeterName = None,
    runner_python: RunnerPython = None,
    set_: Set = None,
) -> None:
    """The flags of every command that takes experiments; only its signature is used."""


def _takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` the flags of `_settings`, which it receives together as `settings`; its own of a name win."""
    own = inspect.signature(command)
    every = inspect.signature(_settings).parameters.items()
    shared = {name: one for name, one in every if name not in own.parameters}

    @functools.wraps(command)
    def with_settings(**given: Any) -> None:
        settings = {name: given.pop(name) for name in shared}
        command(settings=settings, **given)

    file, *others = (one for name, one in own.parameters.items() if name != "settings")
    with_settings.__signature__ = own.replace(parameters=[file, *shared.values(), *others])  # type: ignore[attr-defined]
    with_settings.__annotations__ = {**_settings.__annotations__, **command.__annotations__}
    return with_settings


@app.command()
@_takes_settings
def run(
    file: File = None,
    settings: Settings = NO_SETTINGS,
    output_dir: OutputDir = Path("results"),
    as_json: Json = False,
    quiet: Quiet = False,
    require_publishable: RequirePublishable = False,
    resume: Resume = False,
    retry_failed: RetryFailed = False,
) -> None:
    """Measure an experiment, or a whole study, and store a row for each experiment."""
    from wattdock.progress import progress_for

    prepared = _prepare(file, settings, output_dir, resume=resume or retry_failed, retry_failed=retry_failed)
    interrupted = False
    try:
        prepared.measure(progress_for(quiet=quiet))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        _show(prepared, as_json=as_json)
    if interrupted:
        # Typer would turn a KeyboardInterrupt into a silent exit.
        _fail("interrupted; what was measured is stored", ExitCode.INTERRUPTED)
    results = [stored.result for stored in prepared.stored]
    # What failed says more than what was left unfinished because of it.
    errors = sorted((one.error for one in results if one.error), key=lambda one: one.exit_code == ExitCode.INTERRUPTED)
    for error in errors:
        typer.echo(f"wattdock: {error.stage}: {error.message}", err=True)
    if errors:
        raise typer.Exit(errors[0].exit_code)
    if require_publishable:
        _require_publishable(results)


@app.command()
@_takes_settings
def plan(
    file: File = None,
    settings: Settings = NO_SETTINGS,
    output_dir: OutputDir = Path("results"),
    as_json: Json = False,
) -> None:
    """Check everything that `run` would check and show what it would do; starts nothing."""
    from wattdock.host.folders import wattdock_home
    from wattdock.preflight import Ready, preflight_each
    from wattdock.report.plan_table import print_plan
    from wattdock.study.history import earlier_costs

    study = _study(file, settings)
    checked = preflight_each(study.experiments, output_dir=output_dir, home=wattdock_home())
    if as_json:
        import json

        typer.echo(json.dumps([one.model_dump(mode="json") for one in study.experiments], indent=2))
    else:
        print_plan(study, checked, earlier_costs(study.experiments, output_dir))
    if study.invalid:
        _fail(f"{len(study.invalid)} point(s) cannot be experiments; leave them out with `exclude:`", ExitCode.CONFIG)
    for one in checked:
        if not isinstance(one, Ready):
            raise one


def _require_publishable(results: Sequence["ExperimentResult"]) -> None:
    reasons = [[*one.audit.reasons] if one.audit else ["no audit"] for one in results]
    if unfit := [one for one in reasons if one]:
        which = f"{len(unfit)} of {len(results)} results: " if len(results) > 1 else ""
        many = f"{len(unfit[0])} reason{'s' if len(unfit[0]) > 1 else ''}"
        _fail(f"not publishable: {which}{many}, the first: {unfit[0][0]}", ExitCode.NOT_PUBLISHABLE)


def _print_version(wanted: bool) -> None:
    if wanted:
        from wattdock import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Measure what LLM inference costs in energy."""


@app.command()
def reap() -> None:
    """Remove the containers of coordinators that are gone; those of living ones stay."""
    from wattdock.launch.orphans import reap as reap_orphans

    found = reap_orphans()
    for verb, names in (("removed", found.removed), ("left alone", found.left)):
        for name in names:
            typer.echo(f"{verb}: {name}")
    if not (found.removed or found.left):
        typer.echo("no container of wattdock is here")


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="A result folder.")],
    window: Annotated[
        str | None,
        typer.Option(help="Analyse the stored run anew: drained, steady_state, ml-energy, begin-end, or all."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a stored result, or what it says under another definition of what counts."""
    from wattdock.report.table import print_result
    from wattdock.results.store import load_result

    result = load_result(path)
    if window is not None:
        _show_window(path if path.is_dir() else path.parent, result, window, as_json=as_json)
        return
    if as_json:
        typer.echo(result.model_dump_json(indent=2, by_alias=True))
    else:
        print_result(result, path if path.is_dir() else path.parent, every_reason=True)


@app.command()
def gpus(
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds, until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Show this machine's GPUs, their links, who uses them and who holds a lease; exit code 3 where there is none."""
    from wattdock.report.watch import show_gpus

    if not show_gpus(watch=watch, json_lines=as_json):
        raise typer.Exit(ExitCode.PREFLIGHT)


@app.command()
@_takes_settings
def doctor(
    file: File = None,
    settings: Settings = NO_SETTINGS,
    meter: Annotated[bool, typer.Option("--meter", help="Characterise the energy counters with load pulses.")] = False,
    pulses: Annotated[int, typer.Option(min=10, help="Load pulses per GPU; 100 take about 130 s.")] = 100,
    output_dir: OutputDir = Path("results"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say whether a measurement here would be sound, and what to do; --backend asks the engine too. Exit code 3: no."""
    from wattdock.doctor.cards import meter_cards
    from wattdock.doctor.examine import examine
    from wattdock.host.folders import wattdock_home
    from wattdock.progress import progress_for
    from wattdock.report.cards import show_card
    from wattdock.report.doctor import show_findings

    config = _study(file, settings).experiments[0]
    home, progress = wattdock_home(), progress_for(quiet=quiet)
    if meter:
        for card in meter_cards(config, home=home, pulses=pulses, progress=progress):
            show_card(card, as_json=as_json)
        return
    with_engine = file is not None or settings["backend"] is not None
    findings = examine(config, output_dir=output_dir, home=home, with_engine=with_engine, progress=progress)
    if not show_findings(findings, as_json=as_json):
        raise typer.Exit(ExitCode.PREFLIGHT)


def _show_window(folder: Path, result: "ExperimentResult", window: str, *, as_json: bool) -> None:
    from wattdock.merge.windows import WINDOWS, windows
    from wattdock.report.windows import print_windows
    from wattdock.results.reread import load_restarts

    if window not in (*WINDOWS, "all"):
        raise ConfigError(f"--window {window}: known are {', '.join(WINDOWS)} and all")
    used = result.environment.gpu_uuids if result.environment else []
    in_flight = result.config["workload"]["batch_size"]
    summary = windows(load_restarts(folder, result), used, in_flight=in_flight)
    chosen = [one for one in summary.passes if window in (one.window, "all")]
    if as_json:
        typer.echo(summary.model_copy(update={"passes": chosen}).model_dump_json(indent=2, by_alias=True))
    else:
        print_windows(summary, chosen)


def main() -> NoReturn:
    """Run the command; every error a user can meet is one line and a documented exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not cost the result.
        cast("TextIOWrapper", stream).reconfigure(errors="backslashreplace")
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        # Outside its standalone mode, typer hands the code of an Exit back instead of leaving with it.
        sys.exit(app(standalone_mode=False) or ExitCode.OK)
    except WattdockError as error:
        _fail(str(error), error.exit_code)
    except typer.Exit as exit_:
        sys.exit(exit_.exit_code)
    except UsageError as error:
        _fail(f"{error.format_message()}; see `wattdock --help`", ExitCode.CONFIG)  # type: ignore[attr-defined]
    except typer.Abort:
        _fail("interrupted", ExitCode.INTERRUPTED)
    finally:
        _ignore_interrupts()


def _ignore_interrupts() -> None:
    """Everything is done and stored: one more Ctrl-C would only replace the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _fail(message: str, code: ExitCode) -> NoReturn:
    _ignore_interrupts()
    typer.echo(f"wattdock: {message}", err=True)
    sys.exit(code)


def _prepare(file: Path | None, given: Settings, output_dir: Path, **options: bool) -> "Run":
    from wattdock.host.folders import wattdock_home
    from wattdock.run import Run

    return Run(_study(file, given), output_dir=output_dir, home=wattdock_home(), **options)


def _study(file: Path | None, given: Settings) -> "Study":
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


def _show(prepared: "Run", *, as_json: bool) -> None:
    from wattdock.report.table import print_result, print_summary

    if as_json:
        import json

        typer.echo(json.dumps([one.result.model_dump(mode="json", by_alias=True) for one in prepared.stored], indent=2))
        return
    for one in prepared.stored if len(prepared.stored) <= SHOWN_WHOLE else ():
        print_result(one.result, one.folder)
    if len(prepared.stored) > 1:
        print_summary([one.result for one in prepared.stored])
