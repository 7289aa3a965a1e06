"""`wattdock scaling`."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from wattdock.cli.options import RESULTS, Json, Named, OutputDir, stored
from wattdock.errors import ConfigError

Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it, too: a .pdf, .svg or .png.")]


def scaling(
    results: Named,
    plot: Plot = None,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Compare GPU counts and kinds of split: speed-up, efficiency, latency, power and joules per token."""
    from wattdock.reports import print_scaling, settings

    with stored(results, output_dir) as rows:
        found, left_out = settings({row.folder.name: row.result for row in rows})
    if not found:
        [(reason, count)] = Counter(one.reason for one in left_out).most_common(1)
        who = "all" if count == len(left_out) else f"{count} of them"
        raise ConfigError(f"none of {len(rows)} results can be compared; {who}: {reason}")
    print_scaling(found, left_out, as_json=as_json)
    if plot:
        from wattdock.reports import draw_scaling

        draw_scaling(found, plot)
