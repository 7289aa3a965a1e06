"""Which result of one side stands for which of the other. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wattdock.analysis import differing, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from wattdock.store import StoredResult


@dataclass(frozen=True)
class Match:
    """Two results of one experiment, or of experiments that play the same part on each side.

    Attributes:
        by: "settings" where the experiments are the same one, else the names of the settings that they agree in.
        place: What these are in both, in short: "batch_size=8"; empty where the experiments are the same one.
    """

    first: StoredResult
    second: StoredResult
    by: str
    place: str = ""


@dataclass(frozen=True)
class Matched:
    """Attributes: pairs, and what of either side has no partner; `repeated` counts older rows that were left out."""

    pairs: tuple[Match, ...]
    only_first: tuple[StoredResult, ...]
    only_second: tuple[StoredResult, ...]
    repeated: int


def match(first: Sequence[StoredResult], second: Sequence[StoredResult]) -> Matched:
    """Pair the results of two sides: by experiment, then by the settings that vary within the sides.

    So a sweep in float16 matches the same sweep in bfloat16 batch size by batch size. Of several rows of one
    experiment on one side, the latest stands for it.
    """
    latest = [_latest(side) for side in (first, second)]
    pairs, rests = _paired(latest[0], latest[1], lambda row: row.result.experiment_id, "settings")
    swept = {name for side in latest for name in differing([settings(row.result) for row in side])}
    if all(rests):
        names = sorted(swept)

        def place(row: StoredResult) -> Hashable:
            own = settings(row.result)
            return tuple(own.get(name) for name in names)

        more, rests = _paired(*rests, place, ", ".join(names) or "being the only one on each side")
        pairs += [replace(pair, place=_in_short(settings(pair.first.result), names)) for pair in more]
    left_out = len(first) + len(second) - len(latest[0]) - len(latest[1])
    return Matched(tuple(pairs), tuple(rests[0]), tuple(rests[1]), left_out)


def _in_short(own: Mapping[str, str], names: Sequence[str]) -> str:
    return " ".join(f"{name.rpartition('.')[2]}={own[name]}" for name in names if name in own)


def _latest(side: Sequence[StoredResult]) -> list[StoredResult]:
    """Return the latest row of each experiment, a finished one before any that is not."""
    ordered = sorted(side, key=lambda row: (row.result.status == "ok", row.result.started_utc))
    best = {row.result.experiment_id: row for row in ordered}
    seen = dict.fromkeys(row.result.experiment_id for row in side)
    return [best[experiment] for experiment in seen]


def _paired(
    first: Sequence[StoredResult], second: Sequence[StoredResult], key: Callable[[StoredResult], Hashable], by: str
) -> tuple[list[Match], tuple[list[StoredResult], list[StoredResult]]]:
    """Pair what has the same key, where that is the key of one row on each side only."""
    keys = [[key(row) for row in side] for side in (first, second)]
    once = {one for one in keys[0] if keys[0].count(one) == 1 and keys[1].count(one) == 1}
    partner = {key(row): row for row in second}
    pairs = [Match(row, partner[one], by) for row, one in zip(first, keys[0], strict=True) if one in once]
    rests = tuple(
        [row for row, one in zip(side, own, strict=True) if one not in once]
        for side, own in zip((first, second), keys, strict=True)
    )
    return pairs, (rests[0], rests[1])
