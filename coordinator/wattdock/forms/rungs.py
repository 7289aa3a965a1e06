"""From the joules of boards to the host, the facility, money and carbon, each rung with its own interval. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from math import exp, hypot, log
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wattdock.analysis import statistics
from wattdock.errors import ConfigError
from wattdock.text import from_json, singular
from wattdock.values import known_sum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattdock.analysis import ExperimentResult
    from wattdock.store import StoredResult

J_PER_KWH = 3.6e6
# Figures of a ladder are for so many units of work.
UNITS = 1_000_000
# How factors are written that are no ratio.
EXAMPLES = {
    "--price": "0.12 or 0.12 EUR/kWh",
    "--carbon": "230 or 230±20, in g CO₂e/kWh",
    "--embodied": "30 or 30±5, in g CO₂e per GPU and hour",
}
FACTOR = re.compile(
    r"(?P<value>\d+(\.\d+)?)(\s*(±|\+-)\s*(?P<half>\d+(\.\d+)?))?(\s*(?P<currency>[A-Za-z]{3}|[€$£¥]))?"
)
MIXES = "codecarbon/data/private_infra/global_energy_mix.json"
UNMEASURED = "fans, power supplies and network cards are not in it"


@dataclass(frozen=True)
class Factor:
    """A factor that somebody names.

    Attributes:
        half: Half its 95 % interval; 0 where none was named.
        said: As it is printed.
        state: Of what is multiplied by it.
        currency: Of a price; "" where none was named.
    """

    value: float
    half: float
    said: str
    state: Literal["measured", "modelled"] = "modelled"
    currency: str = ""

    @classmethod
    def parsed(cls, text: str, option: str) -> Factor:
        """Return 1.2 ± 0.1 for "1.2±0.1" and "1.2+-0.1"; a price may name its currency, and "/kWh".

        Raises:
            ConfigError: The text is none, is not above 0, its interval reaches 0, or that of a whole ÷ its part is not
                all above 1.
        """
        said = re.sub(r"\s*/\s*kWh$", "", text.strip()) if option == "--price" else text.strip()
        found = FACTOR.fullmatch(said)
        value, half = (float(found[name] or 0) for name in ("value", "half")) if found else (0.0, 0.0)
        currency = (found and found["currency"]) or ""
        if not half < value or (currency and option != "--price"):
            unit = re.sub(r"[\d\s.+±-]", "", said)
            why = f"{unit} is no currency of three letters; " * (option == "--price" and unit.isalpha())
            why = "a comma is no decimal point; " if "," in said else why
            example = EXAMPLES.get(option, "1.2 or 1.2±0.1")
            raise ConfigError(f"{option} {text}: {why}write a number above 0, as in {example}")
        if option in ("--host", "--pue") and value - half < 1:
            remedy = "write a number from 1 on, with its interval"
            raise ConfigError(f"{option} {text}: the whole takes no less than its part", remedy)
        return cls(value, half, said, currency=currency)

    @classmethod
    def carbon(cls, text: str) -> Factor:
        """Return a factor of g CO₂e/kWh, or that of a country's electricity ("FRA") in CodeCarbon's data.

        Raises:
            ConfigError: The text is neither, or CodeCarbon is not installed.

        Source: codecarbon's data/private_infra/global_energy_mix.json; read without importing it, which takes seconds.
        """
        if not text.isalpha():
            return cls.parsed(text, "--carbon")
        try:
            package = distribution("codecarbon")
        except PackageNotFoundError:
            raise ConfigError(
                f"--carbon {text}: CodeCarbon, which knows countries, is not installed",
                "pip install --no-deps codecarbon, or write g/kWh, as in --carbon 230",
            ) from None
        try:
            mixes = from_json(Path(str(package.locate_file(MIXES))).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"--carbon {text}: CodeCarbon {package.version} has no {MIXES}: {error}") from None
        if not (mix := mixes.get(text.upper(), {})).get("carbon_intensity"):
            raise ConfigError(f"--carbon {text}: no country of CodeCarbon's data", "write three letters, as in FRA")
        said = f"{mix['carbon_intensity']} ({mix['country_name']}, {mix['year']}, codecarbon {package.version})"
        return cls(mix["carbon_intensity"], 0.0, said)


@dataclass(frozen=True)
class Factors:
    """What a person names of the way from boards to money and carbon; None where it is not named.

    Attributes:
        host: Host ÷ boards, with everything in the host; or why a meter that was read does not tell.
        pue: Facility ÷ host (power usage effectiveness).
        price: Per kWh, in any currency.
        carbon: Grams of CO₂ equivalent per kWh.
        embodied: Grams of CO₂ equivalent per GPU and hour, for making the GPUs.
    """

    host: Factor | str | None = None
    pue: Factor | None = None
    price: Factor | None = None
    carbon: Factor | None = None
    embodied: Factor | None = None


@dataclass(frozen=True)
class Rung:
    """One rung: what a million units of work take.

    Attributes:
        unit: "kWh", "g CO₂e", or of money the currency, "" where none was named.
        low, high: Ends of the 95 % interval; None where it is unknown, and `found` says why.
        found: By which meter or factors, or why it is unknown.
    """

    name: str
    state: Literal["measured", "modelled", "unknown"]
    found: str
    unit: str = "kWh"
    value: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> str:
        """The 95 % interval of `value` as text; empty where it is unknown, and where all factors were exact."""
        if self.low is None or self.high is None or self.low == self.high:
            return ""
        return format(statistics.Interval(self.low, self.high))

    def times(self, factor: Factor, name: str, found: str, unit: str = "kWh") -> Rung:
        """Return this rung × a factor: as known as the factor, and unknown where this one is.

        Source: independent relative uncertainties add in quadrature (JCGM 100:2008, 5.1.6), each side for itself.
        """
        if self.value is None:
            return Rung(name, "unknown", f"{self.name} is unknown", unit)
        value, share = self.value * factor.value, factor.half / factor.value
        if self.low is None or self.high is None:
            return Rung(name, factor.state, f"{found}; no interval, since {self.name} has none", unit, value)
        low = value * exp(-hypot(log(self.value / self.low), log(1 - share)))
        high = value * exp(hypot(log(self.high / self.value), log(1 + share)))
        return Rung(name, factor.state, found, unit, value, low, high)


@dataclass(frozen=True)
class Ladder:
    """The rungs of one result, from the boards up.

    Attributes:
        work: The unit of work in the plural: output tokens, samples.
        audit: What the audit says, in a line, after the result's status where that is not "ok".
    """

    label: str
    work: str
    audit: str
    rungs: list[Rung]

    @property
    def no_joules(self) -> ConfigError | None:
        """The refusal of a result without joules, with the reason; None where joules were measured."""
        what = f"{self.label}: no joules per {singular(self.work)} ({self.rungs[0].found})"
        remedy = "name a result that has joules, or measure where `wattdock doctor` finds a meter"
        return ConfigError(what, remedy) if self.rungs[0].value is None else None


def ladder(stored: StoredResult, factors: Factors) -> Ladder:
    """Return what a million units of a result's work take, as far as it was measured or factors are named."""
    result = stored.result
    audit = stored.verdict if result.status == "ok" else f"{result.status}; {stored.verdict}"
    return Ladder(result.config.label, result.config.unit, audit, list(_rungs(result, factors)))


def _rungs(result: ExperimentResult, factors: Factors) -> Iterator[Rung]:
    boards = _boards(result)
    yield boards
    host = _host(result, boards, factors.host)
    yield host
    if factors.pue and host.state == "measured" and not factors.host:
        # RAPL saw a part of the host.
        facility = Rung("facility", "unknown", f"{UNMEASURED}; name host ÷ boards with --host")
    elif factors.pue:
        facility = host.times(factors.pue, "facility", f"host × PUE {factors.pue.said}")
    else:
        facility = Rung("facility", "unknown", "name its PUE with --pue")
    yield facility
    # Money and carbon are of the last rung that is known, which they name.
    top = next((rung for rung in (facility, host) if rung.value is not None), boards)
    if factors.price:
        yield top.times(factors.price, "money", f"{top.name} × {factors.price.said} per kWh", factors.price.currency)
    if factors.carbon:
        yield top.times(factors.carbon, "carbon, use", f"{top.name} × {factors.carbon.said} g/kWh", "g CO₂e")
    if factors.embodied:
        said = f"GPU-hours, taken as exact, × {factors.embodied.said} g/h"
        yield _hours(result).times(factors.embodied, "carbon, embodied", said, "g CO₂e")


def _boards(result: ExperimentResult) -> Rung:
    budget, energy = result.budget, result.energy
    name = "module" if energy and energy.energy_boundary == "module" else "boards"
    if not budget or not energy:
        return Rung(name, "unknown", (energy and energy.reason) or "no work was counted")
    kwh = UNITS / J_PER_KWH
    low, high = (end * kwh for end in budget.interval) if budget.interval else (None, None)
    known = ", whose gain is not in the interval" if budget.interval else f"; no interval: {budget.reason}"
    said = f"{energy.source} of the boards' own sensors{known}"
    return Rung(name, "measured", said, "kWh", budget.energy_per_unit_j * kwh, low, high)


def _host(result: ExperimentResult, boards: Rung, factor: Factor | str | None) -> Rung:
    """Return the boards' rung with the host's part: by a factor, or as far as RAPL saw it."""
    if isinstance(factor, str):
        return Rung("host", "unknown", factor)
    if factor:
        return boards.times(factor, "host", f"boards × {factor.said}")
    energy = result.energy
    if boards.value is None or energy is None or not energy.total_j or not energy.host_j:
        return Rung("host", "unknown", "no meter of the host was read; name host ÷ boards with --host")
    read_j = known_sum(energy.host_j.values())
    nodes = result.environment and result.environment.nodes
    if read_j is None or energy.bystander_j or result.config.command or nodes:
        why = "it has gaps" if read_j is None else "other GPUs or other work are in it"
        why = "other nodes held a part of the model" if nodes else why
        return Rung("host", "unknown", f"RAPL was read of the whole host, and {why}; name host ÷ boards with --host")
    value = boards.value * (1 + read_j / energy.total_j)
    said = f"boards + RAPL ({', '.join(energy.host_j)}), whose accuracy nobody states, so no interval; {UNMEASURED}"
    return Rung("host", "measured", said, value=value)


def _hours(result: ExperimentResult) -> Rung:
    """Return the hours of all GPUs used: joules of a unit ÷ watts of the same windows."""
    budget, energy, environment = result.budget, result.energy, result.environment
    if not budget or not energy or not energy.mean_power_w or not environment:
        return Rung("GPU-hours", "unknown", "no mean power", "h")
    hours = environment.gpu_count * budget.measured / energy.mean_power_w * UNITS / 3600
    return Rung("GPU-hours", "measured", "GPUs × time", "h", hours, hours, hours)
