"""Read files in which others publish results; `origins.yaml` says which path of which form is which field."""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib.resources import files
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from wattdock.config import parse_yaml
from wattdock.errors import ConfigError
from wattdock.opening import read_regular
from wattdock.text import from_json, json_text
from wattdock.values import Positive, Said, Stored

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 100_000_000
# What a person may want who names own results.
OWN = "`wattdock show NAME --checks` has the audit of an own result"
# Figures from here on, and as small ones, are mistakes, and products of a few of them no numbers.
MOST = 1e30


class Imported(Stored):
    """A row of results that others measured; None where their file does not say.

    Attributes:
        link: The file, or the address it was published at, and the row's place in it as a JSON pointer (RFC 6901).
        workload: What the origin calls the work.
        in_flight: The most requests at once, as set; `mean_in_flight` as counted.
        active_parameters: Weights that an output token is multiplied by.
        other_settings: Further settings that tell the origin's rows apart, by the origin's names.
        mean_lengths: Mean tokens of prompts and outputs, as far as the origin's rows differ in them.
        power_w, energy_j: Over all GPUs; `window_s` is how long they were measured.
        sensor_s: How far apart the origin's readings of energy are.
    """

    origin: str
    link: str
    model: Said | None = None
    workload: Said | None = None
    engine: Said | None = None
    engine_version: Said | None = None
    gpu: Said | None = None
    gpu_count: Positive | None = None
    precision: Said | None = None
    prompts: Said | None = None
    in_flight: Positive | None = None
    mean_in_flight: Positive | None = None
    active_parameters: Positive | None = None
    other_settings: dict[str, Said] = Field(default_factory=dict)
    mean_lengths: dict[str, float] = Field(default_factory=dict)
    output_tokens_per_s: Positive | None = None
    output_tokens: Positive | None = None
    output_tokens_per_request: Positive | None = None
    requests: Positive | None = None
    energy_per_output_token_j: Positive | None = None
    energy_per_request_j: Positive | None = None
    energy_j: Positive | None = None
    power_w: Positive | None = None
    window_s: Positive | None = None
    sensor_s: Positive | None = None

    @property
    def gpus(self) -> str | None:
        """How many GPUs of which name, as far as the file tells."""
        return f"{self.gpu_count:g} × {self.gpu}" if self.gpu_count and self.gpu else self.gpu

    @property
    def joules_per_token(self) -> float | None:
        """Joules per output token as told, or else from energy and tokens or power and speed."""
        if self.energy_per_output_token_j:
            return self.energy_per_output_token_j
        if self.energy_j and self.output_tokens:
            return self.energy_j / self.output_tokens
        return self.power_w / self.output_tokens_per_s if self.power_w and self.output_tokens_per_s else None


NUMBERS = {name for name, field in Imported.model_fields.items() if "float" in str(field.annotation)}


class Product(BaseModel, extra="forbid"):
    """The product of what paths lead to, ÷ what `per` leads to."""

    product: list[str]
    per: str | None = None
    unless: list[str] = []

    def of(self, row: Any, where: str) -> float | None:
        """Return it; None without the first factor or the divisor, and where a path of `unless` leads to true.

        Raises:
            ConfigError: A factor is no number.
        """
        factors = [_number(_at(row, factor), f"{where}: {factor}") for factor in self.product]
        divisor = 1.0 if self.per is None else _number(_at(row, self.per), f"{where}: {self.per}")
        if factors[0] is None or divisor is None or any(_at(row, path) for path in self.unless):
            return None
        return prod(factor or 1.0 for factor in factors) / divisor


class Origin(BaseModel, extra="forbid"):
    """A form of files, as `origins.yaml` describes it."""

    source: str
    marks: list[str]
    rows: list[str]
    fields: dict[str, list[str | Product]]
    sensor_s: float | None = None
    factors: dict[str, float] = {}
    other_settings: list[str] = []
    lengths: dict[str, Product] = {}


@cache
def origins() -> dict[str, Origin]:
    """Return the known forms of files by the name of their origin."""
    import yaml

    listed = yaml.safe_load((files("wattdock.imported") / "origins.yaml").read_text("utf-8"))
    return {name: Origin.model_validate(form) for name, form in listed.items()}


def read_rows(path: Path) -> list[Imported]:
    """Return the rows of a file in the order in which they stand there.

    Raises:
        ConfigError: The file cannot be read, is in no known form, or holds a text where a number belongs.
    """
    document = _parsed(path)
    for name, origin in origins().items():
        for place in origin.rows:
            rows = _at(document, place)
            found = rows if isinstance(rows, list) else [rows]
            if not found or _lacking(origin, found[0]):
                continue
            pointer = f"/{place}".rstrip("/")
            links = [f"{path}#{pointer}/{index}" for index in range(len(found))] if found is rows else [str(path)]
            for row, link in zip(found, links, strict=True):
                if lacking := _lacking(origin, row):
                    raise ConfigError(f"{link}: no {lacking[0]}, which rows of {name} have", "leave the row out")
            return [_row(name, row, document, link) for row, link in zip(found, links, strict=True)]
    raise ConfigError(f"{path}: its keys are those of no known form", f"give a file of {', '.join(origins())}; {OWN}")


def _parsed(path: Path) -> Any:
    """Return what a JSON, JSON lines, CSV or YAML file holds."""
    try:
        text = read_regular(path, limit_bytes=MAX_BYTES, follow=True).decode("utf-8-sig")
        if text.lstrip()[:1] in ("{", "["):
            return _json_or_lines(text)
        if path.suffix == ".csv":
            return list(csv.DictReader(text.splitlines()))
        return parse_yaml(text, str(path))[0]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", f"name a JSON, CSV or YAML file; {OWN}") from error
    except (ValueError, csv.Error) as error:
        is_text = not isinstance(error, UnicodeDecodeError)
        why = " ".join(str(error).split())[:200] if is_text else "is a bundle, or another file that is no text in UTF-8"
        raise ConfigError(f"{path}: {why}", f"give JSON, CSV or YAML in UTF-8; {OWN}") from error


def _json_or_lines(text: str) -> Any:
    """Return one JSON document, or the list of those that the lines are, where the first line is one."""
    try:
        return from_json(text)
    except ValueError as whole:
        found: list[Any] = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                found += [from_json(line)] if line.strip() else []
            except ValueError as error:
                raise ValueError(f"line {number}: {error}" if found else str(whole)) from error
        return found


def _lacking(origin: Origin, row: Any) -> list[str]:
    """Return the paths of the form that lead nowhere in a row."""
    return [mark for mark in origin.marks if _at(row, mark) is None]


def _at(value: Any, path: str, document: Any = None) -> Any:
    """Return what a path leads to; None where it leads nowhere."""
    if path.startswith("^"):
        return _at(document, path[1:])
    for number, step in enumerate(parts := path.split(".") if path else []):
        if step == "*" and isinstance(value, list):
            found = [_at(item, ".".join(parts[number + 1 :])) for item in value]
            return sum(found) if found and all(isinstance(part, int | float) for part in found) else None
        if isinstance(value, dict):
            # The first, where a mapping by names of the user's stands in a list's place.
            value = value.get(step, next(iter(value.values()), None) if step.isdigit() else None)
        elif isinstance(value, list):
            value = next((item for place, item in enumerate(value) if step in (str(place), _at(item, "name"))), None)
        else:
            return None
    return value


def _row(name: str, row: Any, document: Any, link: str) -> Imported:
    """Return a row in our form."""
    origin = origins()[name]
    found: dict[str, Any] = {"link": link}
    for field, paths in origin.fields.items():
        where = f"{link}: {field}"
        values = (_at(row, path, document) if isinstance(path, str) else path.of(row, where) for path in paths)
        value = next((value for value in values if value not in (None, "", [], {})), None)
        if field in NUMBERS and value is not None:
            value = _number((_number(value, where) or 0) * origin.factors.get(field, 1), where)
        if value is not None:
            found[field] = value if field in NUMBERS else _text(value)
    # Codecarbon counts GPUs in their name, too.
    found["gpu"] = re.sub(r"^\d+ x ", "", found["gpu"]) if found.get("gpu") else None
    lengths = {name: length for name, mean in origin.lengths.items() if (length := mean.of(row, link))}
    settings = {path: _text(_at(row, path, document)) for path in origin.other_settings}
    told = {path: text for path, text in settings.items() if text is not None}
    return Imported(**found, origin=name, sensor_s=origin.sensor_s, other_settings=told, mean_lengths=lengths)


def _number(value: Any, where: str) -> float | None:
    """Return a figure above 0; None for 0, infinity and what is not told; raise for what is no figure."""
    try:
        number = float(value or 0)
    except (TypeError, ValueError, OverflowError):
        number = MOST
    if isfinite(number) and number != 0 and not 1 / MOST < number < MOST:
        remedy = "correct the file, or leave the row out"
        raise ConfigError(f"{where} is {(_text(value) or '')[:60]!r}, which is no figure", remedy)
    return number if isfinite(number) and number > 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str | None) else json_text(value, default=str)
