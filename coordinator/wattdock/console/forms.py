"""`wattdock cost` and `form`."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from wattdock.console.options import RESULTS, Again, Json, Named, OutputDir, flag, open_results, with_flags
from wattdock.console.views import show
from wattdock.errors import ConfigError
from wattdock.files import require_ending, write_output
from wattdock.output import say
from wattdock.text import listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.forms import Ladder
    from wattdock.store import StoredResult


@dataclass(frozen=True)
class FactorFlags:
    """Flags that stand for factors, or for the file that one is measured from."""

    host: str | None = flag("Host ÷ boards, as in 1.7 or 1.7±0.2.", metavar="FACTOR")
    host_readings: Path | None = flag(
        "Instead, a CSV file of times and watts of the whole server in the run.", metavar="FILE"
    )
    pue: str | None = flag("Facility ÷ host, as in 1.2 or 1.2±0.1.", metavar="FACTOR")
    price: str | None = flag("Per kWh, as in 0.12 or 0.12 EUR/kWh.", metavar="PRICE")
    carbon: str | None = flag("g CO₂e/kWh, as in 230±20, or a country of CodeCarbon's data, as in FRA.", metavar="G")
    embodied: str | None = flag("g CO₂e per GPU and hour, for making the GPUs.", metavar="G")

    def ladders(self) -> "Callable[[StoredResult], Ladder]":
        """Return what carries a result's joules on.

        Raises:
            ConfigError: A factor is none, or the file holds no readings.
        """
        from wattdock.forms import Factor, Factors, HostReadings, ladder

        if self.host and self.host_readings:
            raise ConfigError("--host and --host-readings both say what the host takes", "give one of them")
        named = {name: getattr(self, name) for name in ("host", "pue", "price", "embodied")}
        parsed = {name: Factor.parsed(text, f"--{name}") for name, text in named.items() if text is not None}
        factors = Factors(**parsed, carbon=None if self.carbon is None else Factor.carbon(self.carbon))
        read = HostReadings.read(self.host_readings) if self.host_readings else None

        def of(row: "StoredResult") -> "Ladder":
            host = read.factor(row.result, row.restarts()) if read else factors.host
            return ladder(row, replace(factors, host=host))

        return of


Form = Literal["boamps", "ml-energy", "ai-energy-score", "model-card", "annex-xi"]


@with_flags
def cost(
    named: Named, flags: FactorFlags, again: Again = False, output_dir: OutputDir = RESULTS, as_json: Json = False
) -> None:
    """Carry joules on from the boards to host, facility, money and carbon.

    Each rung says whether it was measured, by which factors it was not, and its 95 % interval. Nothing is stored.
    """
    laddered = flags.ladders()
    with open_results(named, output_dir, again=again) as rows:
        ladders = [laddered(row) for row in rows]
        refused = [refusal for each in ladders if (refusal := each.no_joules)]
        if len(refused) == len(ladders):
            raise refused[0]
    show(ladders, as_json=as_json)


@with_flags
def form(
    kind: Annotated[Form, typer.Argument(metavar="FORM", help=f"{', '.join(get_args(Form))}.")],
    named: Named,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; an existing file is replaced.")],
    flags: FactorFlags,
    again: Again = False,
    output_dir: OutputDir = RESULTS,
) -> None:
    """Write a result in a form that others ask for."""
    from wattdock.forms import FORMS, form_text

    require_ending(output, "", FORMS[kind])
    laddered = flags.ladders()
    read = [flags.host_readings] if flags.host_readings else []
    with open_results(named, output_dir, output, read, again=again) as rows:
        if len(rows) != 1:
            raise ConfigError(
                f"{', '.join(named)}: {len(rows)} results, and `form` takes one",
                f"name one of {listed([shlex.quote(row.place) for row in rows])}",
            )
        write_output(output, form_text(kind, rows[0].result, laddered(rows[0])).encode(), "-o")
    say(f"{kind} in {output}")
