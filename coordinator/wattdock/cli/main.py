"""The `wattdock` command: all its verbs, and how each error becomes one line and an exit code."""

import errno
import sys
from typing import Annotated, NoReturn

import typer

from wattdock.cli.bundles import app as bundle_app
from wattdock.cli.bundles import reproduce
from wattdock.cli.estimate import estimate
from wattdock.cli.exits import exit_by_sigpipe, fail, ignore_interrupts, reader_is_gone, usage_line
from wattdock.cli.experiments import plan, run
from wattdock.cli.images import app as images_app
from wattdock.cli.machine import doctor, gpus, reap
from wattdock.cli.reports import compare, plot, report, scaling
from wattdock.cli.results import app as results_app
from wattdock.cli.results import show
from wattdock.errors import ExitCode, WattdockError
from wattdock.output import guard_output, say

# The base of typer's errors about the command line, which typer does not export.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Measure what LLM inference costs in energy.",
)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# Of a path that a person named: a folder of somebody else, or no possible name.
NO_ACCESS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
ABOUT_RUNS = (run, plan, show, reproduce)
ABOUT_RESULTS = (report, plot, compare, scaling)
ABOUT_MACHINES = (estimate, gpus, doctor, reap)
for command in (*ABOUT_RUNS, *ABOUT_RESULTS, *ABOUT_MACHINES):
    app.command()(command)
app.add_typer(results_app, name="results")
app.add_typer(bundle_app, name="bundle")
app.add_typer(images_app, name="images")


def _print_version(wanted: bool) -> None:
    if wanted:
        from wattdock import __version__

        say(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Measure what LLM inference costs in energy."""


def main() -> NoReturn:
    """Run the command; every error that a user can meet becomes one line and a documented exit code."""
    guard_output()
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        # Outside its standalone mode, typer returns the code of an Exit.
        code = app(standalone_mode=False) or ExitCode.OK
        sys.stdout.flush()
        sys.exit(code)
    except BrokenPipeError:
        if not reader_is_gone():
            raise
        exit_by_sigpipe()
    except OSError as error:
        if error.errno in NO_ROOM:
            fail(f"cannot write: {error.strerror}; free some space, or write elsewhere", ExitCode.STORE)
        if error.errno in NO_ACCESS and error.filename:
            fail(f"{error.filename}: {error.strerror}; check the path and its permissions", ExitCode.CONFIG)
        raise
    except SystemExit as exit_:
        # Typer's answer to a broken pipe.
        if exit_.code == ExitCode.BUG and reader_is_gone():
            exit_by_sigpipe()
        raise
    except WattdockError as error:
        fail(str(error), error.exit_code)
    except typer.Exit as exit_:
        sys.exit(exit_.exit_code)
    except UsageError as error:
        fail(usage_line(error), ExitCode.CONFIG)
    except typer.Abort:
        fail("interrupted", ExitCode.INTERRUPTED)
    finally:
        ignore_interrupts()
