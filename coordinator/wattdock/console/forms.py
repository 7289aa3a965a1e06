"""`wattdock cost` and `form`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.console.options import RESULTS, Again, Json, Named, OutputDir, open_results
from wattdock.console.results import analysed_again
from wattdock.errors import ConfigError
from wattdock.files import write_output
from wattdock.output import say

if TYPE_CHECKING:
    from wattdock.forms import Factors

Host = Annotated[str | None, typer.Option("--host", metavar="FACTOR", help="Host ÷ boards, as in 1.7 or 1.7±0.2.")]
Pue = Annotated[str | None, typer.Option("--pue", metavar="FACTOR", help="Facility ÷ host, as in 1.2 or 1.2±0.1.")]
Price = Annotated[str | None, typer.Option("--price", metavar="PRICE", help="Per kWh, as in 0.12, in any currency.")]
Carbon = Annotated[
    str | None,
    typer.Option(
        "--carbon", metavar="G", help="g CO₂e/kWh, as in 230±20, or a country of CodeCarbon's data, as in FRA."
    ),
]
Embodied = Annotated[
    str | None, typer.Option("--embodied", metavar="G", help="g CO₂e per GPU and hour, for making the GPUs.")
]
FORM_HELP = "boamps, llm-d, ml-energy, ai-energy-score, model-card or annex-xi."


def cost(
    named: Named,
    host: Host = None,
    pue: Pue = None,
    price: Price = None,
    carbon: Carbon = None,
    embodied: Embodied = None,
    again: Again = False,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Carry joules on from the boards to host, facility, money and carbon.

    Each rung says whether it was measured, by which factors it was not, and its 95 % interval. Nothing is stored.
    """
    from wattdock.console.views import show
    from wattdock.forms import ladder

    factors = _factors(host, pue, price, carbon, embodied)
    with open_results(named, output_dir) as rows:
        show([ladder((analysed_again(row) if again else row).result, factors) for row in rows], as_json=as_json)


def form(
    kind: Annotated[str, typer.Argument(metavar="FORM", help=FORM_HELP)],
    named: Named,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; an existing file is replaced.")],
    host: Host = None,
    pue: Pue = None,
    price: Price = None,
    carbon: Carbon = None,
    embodied: Embodied = None,
    again: Again = False,
    output_dir: OutputDir = RESULTS,
) -> None:
    """Write a result in a form that others ask for."""
    from wattdock.forms import form_text, ladder

    factors = _factors(host, pue, price, carbon, embodied)
    with open_results(named, output_dir) as rows:
        if len(rows) != 1:
            raise ConfigError(
                f"{', '.join(named)}: {len(rows)} results, a form is of one",
                "name it, as in STUDY:EXPERIMENT or BUNDLE.tar:EXPERIMENT",
            )
        result = (analysed_again(rows[0]) if again else rows[0]).result
        write_output(output, form_text(kind, result, ladder(result, factors)).encode(), "-o")
    say(f"{kind} in {output}")


def _factors(
    host: str | None, pue: str | None, price: str | None, carbon: str | None, embodied: str | None
) -> "Factors":
    from wattdock.forms import Factor, Factors

    named = {"host": host, "pue": pue, "price": price, "embodied": embodied}
    parsed = {name: Factor.parsed(text, f"--{name}") for name, text in named.items() if text is not None}
    return Factors(**parsed, carbon=None if carbon is None else Factor.carbon(carbon))
