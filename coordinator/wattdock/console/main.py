"""The `wattdock` command: all its verbs, and how each error becomes one line and an exit code."""

import errno
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from wattdock.console.bundles import app as bundle_app
from wattdock.console.bundles import reproduce
from wattdock.console.estimate import estimate
from wattdock.console.exits import exit_by_sigpipe, fail, ignore_interrupts, reader_is_gone, usage_line
from wattdock.console.experiments import measure, plan, run
from wattdock.console.fleet import app as fleet_app
from wattdock.console.forms import cost, form
from wattdock.console.images import app as images_app
from wattdock.console.machine import agent, doctor, gpus, pair, reap, serve
from wattdock.console.options import in_help
from wattdock.console.reports import audit, compare, plot, report, scaling
from wattdock.console.results import app as results_app
from wattdock.console.results import show
from wattdock.errors import ExitCode, WattdockError
from wattdock.files import require_text
from wattdock.output import guard_output, say
from wattdock.version import __version__

# The base of typer's errors about the command line, which typer does not export.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# Commands as they are listed, each with two that can be typed.
COMMANDS: dict[str, dict[Callable[..., None], tuple[str, ...]]] = {
    "Measure": {
        run: ("run --backend vllm --batch-size 8", "run study.yaml"),
        measure: ("measure -- make", "measure --unit samples --restarts 3 -- torchrun train.py"),
        plan: ("plan study.yaml", "plan --publishable study.yaml"),
        estimate: ("estimate llama-3.1-70b --gpu-model H100-80GB", "estimate Qwen/Qwen3-8B --tp 2"),
    },
    "Look": {
        show: ("show study", "show 20261125T103537 --checks"),
        compare: ("compare before after", "compare A.tar B.tar --max-regression 3%"),
        scaling: ("scaling study", "scaling results --json"),
        plot: ("plot pareto study -o figure.pdf", "plot table study -o table.tex"),
        report: ("report study", "report results -o all.html"),
        audit: ("audit lm-arena-chat.json", "audit profile_export_aiperf.json emissions.csv --json"),
        cost: (
            "cost study --pue 1.2 --price 0.12 --carbon 230",
            "cost study --host 1.7±0.2 --pue 1.2±0.1 --carbon FRA",
        ),
    },
    "Publish": {
        reproduce: ("reproduce study.tar", "reproduce study.tar --margin 3%"),
        form: ("form boamps study -o boamps.json", "form model-card study:batch -o ENERGY.md --carbon 230"),
    },
    "Machine": {
        doctor: ("doctor", "doctor --backend vllm"),
        gpus: ("gpus", "gpus --json"),
        serve: ("serve", "serve --port 8000"),
        pair: ("pair pairing.pem", "pair pairing.pem --hours 2"),
        agent: ("agent pairing.pem", "agent pairing.pem --listen 10.0.0.2:7407 --once"),
        reap: ("reap", "reap --every 60"),
    },
}
SUB_APPS = {
    "fleet": (fleet_app, "Measure"),
    "results": (results_app, "Look"),
    "bundle": (bundle_app, "Publish"),
    "images": (images_app, "Publish"),
}


class _Grouped(TyperGroup):
    """The command's help: what each command does, by what people come for."""

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Write a list per group, each command with the first sentence of its help."""
        for group, commands in COMMANDS.items():
            names = [command.__name__ for command in commands]
            names += [name for name, (_, within) in SUB_APPS.items() if within == group]
            with formatter.section(group):
                formatter.write_dl(
                    [(name, f"{(self.commands[name].help or name).partition('.')[0]}.") for name in names]
                )


app = typer.Typer(
    cls=_Grouped,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure what LLM inference costs in energy.",
)
# Error numbers of a full disk or quota.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# Error numbers of a path that a person named: a folder of somebody else, or an impossible name.
NO_ACCESS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
# Extra of pyproject.toml by module that it installs.
EXTRAS = dict.fromkeys(("altair", "jinja2", "vl_convert"), "report")
EXTRAS |= dict.fromkeys(("prometheus_client", "starlette", "uvicorn"), "serve")
EXTRAS |= {"mlflow": "mlflow", "wandb": "wandb", "cryptography": "nodes"}
for commands in COMMANDS.values():
    for command, examples in commands.items():
        app.command(epilog=in_help(*examples))(command)
for name, (sub_app, _) in SUB_APPS.items():
    app.add_typer(sub_app, name=name)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Measure what LLM inference costs in energy."""


def line_and_code(error: Exception) -> tuple[str, ExitCode] | None:
    """Return the line and the exit code for an error that a user can meet; None for a bug."""
    match error:
        case WattdockError():
            return str(error), error.exit_code
        case UsageError():
            return usage_line(error), ExitCode.CONFIG
        case typer.Abort():
            return "interrupted", ExitCode.INTERRUPTED
        case OSError(errno=number) if number in NO_ROOM:
            return f"cannot write: {error.strerror}; free some space, or write elsewhere", ExitCode.STORE
        case OSError(errno=number, filename=path) if number in NO_ACCESS and path:
            return f"{path}: {error.strerror}; check the path and its permissions", ExitCode.CONFIG
        case ModuleNotFoundError(name=str(module)) if extra := EXTRAS.get(module.partition(".")[0]):
            return f"this command needs the extra `{extra}`: pip install 'wattdock[{extra}]'", ExitCode.PREFLIGHT
    return None


def main() -> NoReturn:
    """Run the command; every error that a user can meet becomes one line and a documented exit code."""
    guard_output()
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        for argument in sys.argv[1:]:
            require_text(argument, "argument")
        # Outside its standalone mode, typer returns the code of an Exit.
        code = app(standalone_mode=False) or ExitCode.OK
        sys.stdout.flush()
        sys.exit(code)
    except BrokenPipeError:
        if not reader_is_gone():
            raise
        exit_by_sigpipe()
    except SystemExit as exit_:
        # Typer's answer to a broken pipe.
        if exit_.code == ExitCode.BUG and reader_is_gone():
            exit_by_sigpipe()
        raise
    except typer.Exit as exit_:
        sys.exit(exit_.exit_code)
    except Exception as error:
        if known := line_and_code(error):
            fail(*known, error if isinstance(error, WattdockError) else None)
        raise
    finally:
        ignore_interrupts()
