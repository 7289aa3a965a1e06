"""`wattdock compare`."""

from typing import Annotated

import typer

from wattdock.cli.ending import fail
from wattdock.cli.options import NAMED, RESULTS, Json, OutputDir, share, stored
from wattdock.errors import ConfigError, ExitCode

Allowed = Annotated[
    str | None,
    typer.Option(
        "--max-regression",
        metavar="3%",
        help="End with 9 where B is shown to be worse than A by more than this, with 10 where that cannot be decided.",
    ),
]


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help=f"The one to compare with. {NAMED}")],
    second: Annotated[str, typer.Argument(metavar="B", help="The other, named in the same way.")],
    max_regression: Allowed = None,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Say whether two sets of results differ, by how much, and in what else they do."""
    from wattdock.reports import Outcome, judge, print_comparison, print_comparison_json
    from wattdock.reports import compare as compare_rows

    allowed = None if max_regression is None else share(max_regression, "--max-regression")
    with stored([first], output_dir) as one, stored([second], output_dir) as other:
        compared = compare_rows(one, other)
    if not compared.pairs:
        alone = f"{len(compared.only_first)} and {len(compared.only_second)} results"
        raise ConfigError(f"{first} and {second}: no experiment of one has a counterpart in the other ({alone})")
    gate = None if allowed is None else judge(compared, allowed)
    (print_comparison_json if as_json else print_comparison)(compared, gate)
    if gate and gate.outcome is Outcome.REGRESSION:
        fail(f"regression: {gate.lines[0]}", ExitCode.REGRESSION)
    if gate and gate.outcome is Outcome.UNDECIDED:
        fail(f"whether it regressed cannot be decided: {gate.lines[0]}; {gate.advice}", ExitCode.UNDECIDED)
