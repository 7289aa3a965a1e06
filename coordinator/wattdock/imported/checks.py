"""What a row of others speaks for and against itself, beside the rows published with it. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Literal

from wattdock.audit import Checklist, Outcome, verdict
from wattdock.errors import ConfigError
from wattdock.host import gpu_models
from wattdock.inputs.architecture import BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.analysis import Check, Question
    from wattdock.imported.read import Imported

Answer = Literal["nothing against", "against", "unknown"]
# Two figures that are each known to ± 2 %, as publication asks of wattdock's own, differ by no more.
MOST_APART = 1.02 / 0.98 - 1
# Rounding of published figures, and means over slightly different windows.
MOST_INCONSISTENT = 0.02
# NVML's power reading is accurate to so much (nvmlDeviceGetPowerUsage).
POWER_ACCURACY = 0.05
# Half of the ± 2 % that publication allows.
MOST_OF_WINDOW = 0.01
# Bits of a weight, by what origins call its type.
WEIGHT_BYTES = BYTES | {"bf16": 2.0, "fp16": 2.0, "int4": 0.5} | dict.fromkeys(("fp4", "mxfp4", "nvfp4"), 0.5)
# Figures whose products must agree.
IDENTITIES = (
    (("energy_per_output_token_j", "output_tokens_per_s"), ("power_w",)),
    (("energy_per_output_token_j", "output_tokens"), ("energy_j",)),
    (("energy_per_output_token_j", "output_tokens_per_request"), ("energy_per_request_j",)),
    (("power_w", "window_s"), ("energy_j",)),
    (("output_tokens_per_s", "window_s"), ("output_tokens",)),
    (("requests", "output_tokens_per_request"), ("output_tokens",)),
    (("output_tokens_per_s", "window_s"), ("requests", "output_tokens_per_request")),
)
SETTINGS = ("model", "engine", "engine_version", "gpu", "gpu_count", "precision", "in_flight", "prompts")
FIGURES = ("output_tokens_per_s", "energy_per_output_token_j", "energy_j", "power_w", "window_s")


@dataclass(frozen=True)
class Compared:
    """A row beside the rows of its origin whose settings, but for the number in flight, are equal."""

    row: Imported
    series: Sequence[Imported]

    @property
    def twins(self) -> list[Imported]:
        """Rows of equal settings, this row included; a row that was given twice counts once."""
        equal = [other for other in self.series if other.in_flight == self.row.in_flight]
        return list({tuple(getattr(other, name) for name in FIGURES): other for other in equal}.values())

    @property
    def gpu(self) -> gpu_models.GpuModel | None:
        """The model of its GPUs; None where it is not known."""
        named = self.row.gpu or ""
        for name in (named, named.replace("-", " "), re.split(r"[-_]", named)[0]):
            try:
                return gpu_models.find(name)
            except ConfigError:
                continue
        return None


CHECKS: Checklist[Compared] = Checklist()


@dataclass(frozen=True)
class AuditedRow:
    """A row with its checks, and an answer to each question of the verdict. Never publishable: others measured it."""

    row: Imported
    checks: list[Check]
    publishable: Literal[False] = False
    answers: dict[Question, Answer] = field(init=False)

    def __post_init__(self) -> None:
        answers: dict[Question, Answer] = dict.fromkeys(("wrong", "known", "repeat"), "nothing against")
        found: tuple[tuple[Answer, list[Check]], ...] = (("unknown", self.missing()), ("against", self.against()))
        for answer, checks in found:
            answers |= {check.question: answer for check in checks if check.question}
        object.__setattr__(self, "answers", answers)

    def against(self, question: Question | None = None) -> list[Check]:
        """Return the checks that speak against the row."""
        return [check for check in self._of(question) if check.status in ("fail", "warn")]

    def missing(self, question: Question | None = None) -> list[Check]:
        """Return the checks that the row lacks evidence for."""
        return [check for check in self._of(question) if check.status == "unknown"]

    def _of(self, question: Question | None) -> Iterable[Check]:
        return (check for check in self.checks if question in (None, check.question))


def audit_rows(rows: Sequence[Imported]) -> list[AuditedRow]:
    """Return every row with what it, and the rows beside it, say for and against it."""
    series = defaultdict(list)
    for row in rows:
        series[_settings(row)].append(row)
    return [AuditedRow(row, list(CHECKS.run(Compared(row, series[_settings(row)])))) for row in rows]


def _settings(row: Imported) -> tuple[object, ...]:
    """Return everything but the number in flight that tells a row's settings from others'."""
    named = [getattr(row, name) for name in ("origin", "workload", *SETTINGS) if name != "in_flight"]
    # Means over the requests of two runs of equal settings differ in their third digit.
    lengths = {name: f"{length:.2g}" for name, length in row.mean_lengths.items()}
    return (*named, *sorted(row.other_settings.items()), *sorted(lengths.items()))


@CHECKS.check("speed at more in flight", question="wrong", threshold=f"at most {MOST_APART:.1%} slower than at fewer")
def faster_with_more(compared: Compared) -> Outcome | None:
    """Whether the row is as fast as the row of the next fewer requests in flight, at least."""
    row, in_flight = compared.row, compared.row.in_flight or 0
    fewer = [other for other in compared.series if other.in_flight and other.in_flight < in_flight]
    if row.output_tokens_per_s is None or not fewer:
        return None
    next_fewer = max(other.in_flight or 0 for other in fewer)
    speeds = [other.output_tokens_per_s for other in fewer if other.in_flight == next_fewer]
    if not (known := [speed for speed in speeds if speed]):
        return None
    if row.gpu is None or row.gpu_count is None:
        return Outcome("unknown", "on which GPUs, and how many, is not told of these rows")
    change = row.output_tokens_per_s / max(known) - 1
    figure = f"{row.output_tokens_per_s:,.0f} tokens/s, {change:+.1%} against {next_fewer:g} in flight"
    return Outcome("warn" if change < -MOST_APART else "pass", figure)


@CHECKS.check("power limit", question="wrong", source="gpus.yaml; NVML reads power to ± 5 %")
def within_limit(compared: Compared) -> Outcome:
    """Whether mean power, or energy ÷ window where power is not told, is within the boards' own limit."""
    row, gpu = compared.row, compared.gpu
    power_w = row.power_w or (row.energy_j / row.window_s if row.energy_j and row.window_s else None)
    if power_w is None or row.gpu_count is None:
        return Outcome("unknown", "power, or the number of GPUs, is not told")
    if gpu is None or gpu.power_limit_w is None:
        return Outcome("unknown", f"the limit of {row.gpu} is not known")
    per_gpu_w = power_w / row.gpu_count
    status = verdict(failed=per_gpu_w > gpu.power_limit_w * (1 + POWER_ACCURACY))
    return Outcome(status, f"{per_gpu_w:.0f} W for each GPU", f"{gpu.power_limit_w:g} W + {POWER_ACCURACY:.0%}")


@CHECKS.check("figures agree", question="wrong", threshold=f"{MOST_INCONSISTENT:.0%} apart")
def figures_agree(compared: Compared) -> Outcome:
    """Whether the row's figures give each other: joules, tokens, watts and seconds."""
    apart = {}
    for factors, product in IDENTITIES:
        left, right = ([getattr(compared.row, name) for name in side] for side in (factors, product))
        if all((*left, *right)):
            apart[f"{' × '.join(factors)} ÷ ({' × '.join(product)})"] = prod(left) / prod(right) - 1
    if not apart:
        return Outcome("unknown", "no two of its figures give a third")
    worst = max(apart, key=lambda name: abs(apart[name]))
    figure = f"{worst} = {1 + apart[worst]:.3f} ({len(apart)} compared)"
    return Outcome(verdict(failed=abs(apart[worst]) > MOST_INCONSISTENT), figure)


@CHECKS.check(
    "possible speed",
    question="wrong",
    threshold="no faster than arithmetic and bandwidth allow, where each step gives each request one token",
    source="Williams, Waterman, Patterson, CACM 52(4), 2009; gpus.yaml",
)
def possible_speed(compared: Compared) -> Outcome:
    """Whether output tokens alone, without prompts and caches, fit the GPUs' roofline."""
    row, weight_bytes = compared.row, WEIGHT_BYTES.get((compared.row.precision or "").lower())
    at_once = row.mean_in_flight or row.in_flight
    if not (row.output_tokens_per_s and row.active_parameters and weight_bytes and at_once and row.gpu_count):
        return Outcome("unknown", "speed, weights, their type, requests in flight or GPUs are not told")
    peak = gpu_models.peak_of([compared.gpu.name] if compared.gpu else [], bits=round(8 * weight_bytes))
    if peak is None:
        return Outcome("unknown", f"no peak is known for {row.gpu}")
    # Arithmetic of four bits is at most twice as fast as the eight bits' peak, which is the fastest that is known.
    rate = row.active_parameters * row.output_tokens_per_s / row.gpu_count
    operations, bytes_read = 2 * rate * min(1.0, weight_bytes), rate * weight_bytes / at_once
    shares = {"arithmetic": operations / peak.flops_per_s, "bandwidth": bytes_read / peak.memory_bytes_per_s}
    nearest = max(shares, key=lambda limit: shares[limit])
    return Outcome(verdict(failed=shares[nearest] > 1), f"{shares[nearest]:.0%} of what {nearest} allows")


@CHECKS.check("joules per token", question="known")
def energy_told(compared: Compared) -> Outcome:
    """Whether energy per output token is told, or follows from what is."""
    joules = compared.row.joules_per_token
    return Outcome("pass", f"{joules:.4g} J") if joules else Outcome("unknown", "neither told nor to be worked out")


@CHECKS.check("repeats", question="known", threshold=f"{MOST_APART:.1%} apart: each known to ± 2 %")
def repeats_agree(compared: Compared) -> Outcome:
    """Whether rows of equal settings agree on joules per token."""
    known = [joules for twin in compared.twins if (joules := twin.joules_per_token)]
    if len(known) < 2 or compared.row.joules_per_token is None:
        return Outcome("unknown", "one row of these settings, without repeats or an interval")
    if compared.row.gpu is None or compared.row.gpu_count is None:
        return Outcome("unknown", "on which GPUs, and how many, is not told of these rows")
    apart = max(known) / min(known) - 1
    figure = f"{len(known)} rows of equal settings, {apart:.1%} apart in J/output token"
    return Outcome(verdict(failed=apart > MOST_APART), figure)


@CHECKS.check("measured window", question="known", threshold=f"its ends are {MOST_OF_WINDOW:.0%} of it at most")
def window_resolved(compared: Compared) -> Outcome:
    """Whether the window, told or energy ÷ power, is long beside the time between two readings of energy."""
    row = compared.row
    window_s = row.window_s or (row.energy_j / row.power_w if row.energy_j and row.power_w else None)
    if window_s is None or row.sensor_s is None:
        return Outcome("unknown", "its length, or how often energy was read, is not told")
    share = row.sensor_s / window_s
    figure = f"{window_s:,.0f} s, read every {row.sensor_s:g} s: ends of {share:.1%}"
    return Outcome(verdict(failed=share > MOST_OF_WINDOW), figure)


@CHECKS.check("settings told", question="repeat", threshold="all that another run needs, as far as any origin tells it")
def settings_told(compared: Compared) -> Outcome:
    """Whether the row says what to run again."""
    lacking = [name for name in SETTINGS if getattr(compared.row, name) is None]
    return Outcome("unknown", f"not told: {', '.join(lacking)}") if lacking else Outcome("pass", "all told")
