"""wattdock from Python and notebooks: measure, open and tabulate results; `import wattdock` offers these names.

In: settings, or names of results as the command takes them. Out: `Results`, and tables whose columns carry their units.
Whatever a user can do wrong is a `WattdockError` of one line. Nothing in wattdock imports this module.
"""

from __future__ import annotations

import atexit
import io
import os
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from wattdock.config import load_study
from wattdock.console.progress import progress_for
from wattdock.errors import ConfigError, error_kind
from wattdock.execution import Measurement, RunOptions, measure
from wattdock.host import folders
from wattdock.publish import open_bundle
from wattdock.store import Row, StoredResult, all_rows, find_results, matching
from wattdock.study import find_study

if TYPE_CHECKING:
    import pyarrow as pa

    from wattdock.analysis import ExperimentResult

FilePath: TypeAlias = str | os.PathLike[str]
# Library of a table: "auto" is pandas where it is installed, else Arrow.
Frame = Literal["auto", "arrow"]
# Bundles stay unpacked for as long as their results may be read.
_UNPACKED = ExitStack()
atexit.register(_UNPACKED.close)


@dataclass(frozen=True, repr=False)
class Result:
    """One stored result.

    The tables are the restarts' files, a row per request, step or sample; times are ns of the host's monotonic clock.
    docs/how-to/data.md says what each column means.
    """

    stored: StoredResult

    def __repr__(self) -> str:
        by = f", analysed by wattdock {self.stored.analysed_by}" if self.stored.analysed_by else ""
        return f"Result({self.folder.name}, {self.data.status}{by})"

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self.stored.folder

    @property
    def data(self) -> ExperimentResult:
        """Settings, figures, audit and environment, as stored; None for what was not measured."""
        return self.stored.result

    def requests(self, *, frame: Frame = "auto") -> Any:
        """Return times, counts and text of each request.

        Raises:
            StoreError: A restart's file is missing or cannot be read; so for the other two tables.
        """
        return _framed(self.stored.table("requests"), frame)

    def steps(self, *, frame: Frame = "auto") -> Any:
        """Return the engine's steps; no rows where the engine does not tell."""
        return _framed(self.stored.table("steps"), frame)

    def timeline(self, *, frame: Frame = "auto") -> Any:
        """Return what was sampled: counters, power and temperature by GPU, the host's energy, the runner's tokens."""
        return _framed(self.stored.table("timeline"), frame)

    def plot(self, kind: str = "timeline") -> Any:
        """Return a chart of this result; see `Results.plot`."""
        return Results([self]).plot(kind)


class Results(tuple[Result, ...]):
    """Results, in the order of their study or as they were named."""

    def __repr__(self) -> str:
        """Return what `wattdock show` prints of them."""
        from wattdock.console.views import show

        with redirect_stdout(io.StringIO()) as shown:
            show([result.stored for result in self])
        return shown.getvalue().rstrip() or "no results"

    def table(self, *, frame: Frame = "auto") -> Any:
        """Return the table of these results, a row each, as `wattdock.results` does."""
        return _framed(Row.table([result.stored.row for result in self]), frame)

    def plot(self, kind: str = "intervals") -> Any:
        """Return an Altair chart, which a notebook shows; its `save` writes a file.

        Args:
            kind: One of the charts of `wattdock plot`.

        Raises:
            ConfigError: There is no such kind, or these results have nothing to draw of it.
        """
        from wattdock.reports.charts import chart

        return chart(kind, [result.stored for result in self])


def run(
    study: Mapping[str, Any] | FilePath | None = None,
    output_dir: FilePath = "results",
    *,
    settings: Mapping[str, Any] | None = None,
    resume: bool | str = False,
    retry_failed: bool = False,
    publishable: bool = False,
    quiet: bool = False,
) -> Results:
    """Measure an experiment or a study as `wattdock run` does; each pass is saved at once.

    Args:
        study: A YAML file, or what such a file would hold; without either the study that `resume` names, or one
            experiment of defaults.
        output_dir: Folder of results.
        settings: Dotted setting → value, laid over every experiment, as `--set` does.
        resume: Continue this study, or the one of this name, where it stopped.
        retry_failed: Like `resume`, and measure failed experiments again.
        publishable: Set what publication needs and the study does not set; `Result.data.audit` has the verdict.
        quiet: Show no progress.

    Raises:
        ConfigError, PreflightError: Nothing was started.
        WattdockError: All experiments failed: the first one's error. Where only some did, each is a warning.
        KeyboardInterrupt: What was measured is stored.
    """
    overrides, folder, home = dict(settings or {}), Path(output_dir), folders.wattdock_home()
    earlier = find_study(resume, folder) if isinstance(resume, str) else None
    if study is None and earlier:
        study = earlier.settings
    source = study if study is None or isinstance(study, Mapping) else Path(study)
    planned = load_study(
        source, overrides, written_as={name: f"settings[{name!r}]" for name in overrides}, publishable=publishable
    )
    progress, resumed = progress_for(quiet=quiet), earlier or bool(resume) or retry_failed
    done = Measurement()
    try:
        measure(planned, RunOptions(folder, home, resumed, retry_failed), done, emit=progress)
    finally:
        progress.close()
    found = Results(map(Result, done.results))
    failures = [result.data.error for result in found if result.data.error]
    if failures and len(failures) == len(found):
        raise error_kind(failures[0].exit_code)(f"{failures[0].stage}: {failures[0].message}")
    for line in dict.fromkeys(f"{failure.stage}: {failure.message}" for failure in failures):
        warnings.warn(line, stacklevel=2)
    return found


def load(name: FilePath, output_dir: FilePath = "results", *, again: bool = False) -> Results:
    """Return stored results.

    Args:
        name: A result, study, bundle or folder of results; in `output_dir` the beginning of a name is enough.
        again: Whether the records are analysed and audited again, as this version of wattdock does.

    Warns of experiments of a study that have no result, and where one run of several was taken.

    Raises:
        ConfigError: No result has this name, or several have.
        StoreError: A result or bundle cannot be read.
    """
    found = find_results(
        [os.fspath(name)],
        Path(output_dir),
        lambda bundle: _UNPACKED.enter_context(open_bundle(bundle)).folder,
        lambda line: warnings.warn(line, stacklevel=4),
    )
    return Results(Result(stored.analysed_again() if again else stored) for stored in found)


def results(
    name: FilePath | None = None,
    where: str | None = None,
    output_dir: FilePath = "results",
    *,
    frame: Frame = "auto",
    again: bool = False,
) -> Any:
    """Return the table of stored results, a row each, the latest first; units stand in the columns' names.

    A result that a later attempt of the same study replaces is left out; so is a result that cannot be read, with a
    warning that names its file, unless it may be one of those named.

    Args:
        name: As `load` takes it; None is all in `output_dir`.
        where: A condition on the columns, in SQL, such as "backend = 'vllm' AND batch_size > 4".
        frame: Library of the table: by default pandas where it is installed, else Arrow.
        again: As `load` takes it.

    Raises:
        ConfigError: There are no results, the condition is wrong, or the library is not installed.
        StoreError: As `load`.
    """
    lines: list[str] = []
    if name is None:
        rows = all_rows(Path(output_dir), again=again, warn=lines.append)
    else:
        rows = [result.stored.row for result in load(name, output_dir, again=again)]
    for line in lines:
        warnings.warn(line, stacklevel=2)
    found = sorted(matching(rows, where), key=attrgetter("started_utc"), reverse=True)
    return _framed(Row.table(found), frame)


def _framed(table: pa.Table, frame: Frame) -> Any:
    """Return a table as a frame of the library that was asked for."""
    if frame not in get_args(Frame):
        raise ConfigError(f"frame={frame!r}: there are {', '.join(get_args(Frame))}")
    if frame == "arrow" or find_spec("pandas") is None:
        return table
    pandas = import_module("pandas")
    # Where an integer is missing, pandas would make numbers of 53 bits of the others.
    integers = {"int64": pandas.Int64Dtype(), "int32": pandas.Int32Dtype(), "uint64": pandas.UInt64Dtype()}
    return table.to_pandas(types_mapper=lambda kind: integers.get(str(kind)))
