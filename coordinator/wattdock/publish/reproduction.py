"""What a bundle's experiments are on another machine, and how what came out there compares. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from wattdock.analysis import (
    ENERGY,
    METHOD,
    SPEED,
    SPELLED,
    conditions,
    differing,
    equivalence,
    geometric_mean,
    restart_values,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock.analysis import ExperimentResult, Verdict

ABSENT = "none"
PROMPTS, PROMPTS_HASH = SPELLED["dataset"], SPELLED["dataset_sha256"]
# What an engine found out about memory is no setting.
SEEN_ONLY = "engine: memory_by_gpu"
# Of a request: restart, pass, index.
Place = tuple[int, int, int]
Ids = tuple[int, ...]


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FigureComparison(_Stored):
    """One figure, before and now: geometric means over restarts.

    Attributes:
        relative: Their ratio − 1.
        interval90: Of `relative`; null where there is none.
        reason: Why it is undecided, or was not compared.
    """

    quantity: str
    before: float | None
    now: float | None
    relative: float | None = None
    interval90: tuple[float, float] | None = None
    verdict: Literal["equivalent", "not equivalent", "undecided"]
    reason: str | None = None


class TokenComparison(_Stored):
    """Whether greedy decoding chose the same token ids; null counts where that says nothing."""

    compared: int | None
    equal: int | None
    reason: str | None = None


class Difference(_Stored):
    """A fact of the environment that is another now."""

    name: str
    before: str
    now: str


class Comparison(_Stored):
    """One of a bundle's experiments beside its reproduction.

    Attributes:
        folder, reproduced: Result folders, in the bundle and here; null for what was not measured again.
        verdict: Of the first figure, joules per token where the bundle has them.
        margin: Relative; the ratio must lie between 1 ÷ (1 + margin) and 1 + margin.
    """

    label: str
    folder: str
    reproduced: str | None
    verdict: Literal["equivalent", "not equivalent", "undecided"]
    reason: str | None = None
    method: str = METHOD
    margin: float
    figures: list[FigureComparison] = Field(default_factory=list)
    tokens: TokenComparison | None = None
    differences: list[Difference] = Field(default_factory=list)


def compared(
    label: str,
    before: ExperimentResult,
    now: ExperimentResult,
    *,
    folders: tuple[str, str],
    tokens: TokenComparison,
    margin: float,
) -> Comparison:
    """Compare an experiment of a bundle with what was measured now.

    Args:
        folders: Of both results.
    """
    old, new = restart_values(before), restart_values(now)
    figures = [_figure(name, old.get(name, []), new.get(name, []), margin) for name in (ENERGY, SPEED)]
    if figures[0].before is None:
        # Nothing to reproduce: speed is what was published.
        figures.reverse()
    verdict, reason = figures[0].verdict, figures[0].reason
    if now.status != "ok":
        # What there is of it may look alike; it is not the same experiment.
        verdict, reason = "undecided", f"{now.status} here: {now.error.message if now.error else 'no error is stored'}"
    return Comparison(
        label=label,
        folder=folders[0],
        reproduced=folders[1],
        verdict=verdict,
        reason=reason,
        margin=margin,
        figures=figures,
        tokens=tokens,
        differences=differences(before, now),
    )


def differences(before: ExperimentResult, now: ExperimentResult) -> list[Difference]:
    """Return what else is not the same: boards, limits, driver, software, model, prompts, engine arguments."""
    old, new = conditions(before), conditions(now)
    if old.get(PROMPTS_HASH) == new.get(PROMPTS_HASH):
        # The same file, wherever it lies.
        for one in (old, new):
            one.pop(PROMPTS, None)
    pairs = [(name, old.get(name, ABSENT), new.get(name, ABSENT)) for name in differing([old, new])]
    return [
        Difference(name=name, before=was, now=is_)
        for name, was, is_ in pairs
        if not name.startswith(SEEN_ONLY) and not _same_file(was, is_)
    ]


def _same_file(was: str, is_: str) -> bool:
    """Whether two paths differ in where the folder lies only: homes do, and stand-ins for them."""
    return was.startswith("/") and is_.startswith("/") and was.rpartition("/")[2] == is_.rpartition("/")[2]


def token_comparison(
    before: ExperimentResult, now: ExperimentResult, old: Mapping[Place, Ids | None], new: Mapping[Place, Ids | None]
) -> TokenComparison:
    """Compare the token ids of equal requests, where equal ones are to be expected.

    Args:
        old, new: Ids by request; None where an engine did not tell.
    """
    if why := _incomparable(before, now):
        return TokenComparison(compared=None, equal=None, reason=why)
    both = [place for place in old if old[place] is not None and new.get(place) is not None]
    if not both:
        return TokenComparison(compared=None, equal=None, reason="no token ids are stored of both")
    return TokenComparison(compared=len(both), equal=sum(old[place] == new[place] for place in both))


def _incomparable(before: ExperimentResult, now: ExperimentResult) -> str | None:
    if before.config["workload"].get("temperature"):
        return "sampled, not greedy"
    if before.environment is None or now.environment is None:
        return "one of them has no environment"
    for name in ("dataset_sha256", "seed"):
        if getattr(before.environment, name) != getattr(now.environment, name):
            return f"another {name.removesuffix('_sha256')}"
    return None


def _figure(quantity: str, before: Sequence[float], now: Sequence[float], margin: float) -> FigureComparison:
    means = {"before": _mean(before), "now": _mean(now)}
    verdict: Verdict = "undecided"
    if means["before"] is None or means["now"] is None:
        where, values = ("the bundle", before) if means["before"] is None else ("this run", now)
        return FigureComparison(
            quantity=quantity, **means, verdict=verdict, reason=f"{_why_no_mean(quantity, values)} in {where}"
        )
    found = equivalence(before, now, margin=margin)
    interval = None if found.low is None or found.high is None else (found.low, found.high)
    return FigureComparison(
        quantity=quantity,
        **means,
        relative=found.relative,
        interval90=interval,
        verdict=found.verdict,
        reason=found.reason,
    )


def _mean(values: Sequence[float]) -> float | None:
    return geometric_mean(values) if values and min(values) > 0 else None


def _why_no_mean(quantity: str, values: Sequence[float]) -> str:
    if values:
        return f"a restart's {'energy' if quantity == ENERGY else 'speed'} is 0 or less, so without a ratio,"
    return "energy was not measured" if quantity == ENERGY else "no speed was measured"


def settings_here(
    pinned: dict[str, Any], before: ExperimentResult, *, lock_sha256: str | None = None
) -> dict[str, Any]:
    """Return pinned settings with what was found out on the first machine made explicit: accelerator, launcher, image.

    "auto" must not choose otherwise here.

    Args:
        lock_sha256: Of the lock of images that there is here; where an experiment was measured under that one, its
            image is taken from the lock, else by its digest.
    """
    seen = before.environment
    if seen is None:
        return pinned
    on_gpu = seen.gpu_count > 0
    changed: dict[str, Any] = {"accelerator": "cuda" if on_gpu else "cpu", "launcher": seen.launcher}
    if not on_gpu:
        changed["gpus"] = "auto"
    if inside := seen.container:
        locked = inside.locked and inside.lock_sha256 == lock_sha256
        image = None if locked else inside.locked_digest or seen.image_digest or inside.image
        changed["container"] = pinned.get("container", {}) | {"image": image, "locked": locked}
    return pinned | changed
