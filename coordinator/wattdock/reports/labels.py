"""Short labels for results, all different: their names, and behind equal names what tells them apart. Pure."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from wattdock.analysis import conditions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock.store import StoredResult

# Traits that tell results apart only where no other does, in this order.
LAST = {"board": 1, "start": 2}


def labels(results: Sequence[StoredResult]) -> list[str]:
    """Return a label for each result, all different.

    A label is the result's name, without a name its backend, model and load. Behind equal names stand the fewest traits
    that tell them apart: GPUs, engine's version and settings, else boards, else start, else a number.
    """
    texts = [stored.result.config.label for stored in results]
    traits_at = cache(lambda at: _traits(results[at]))
    while parted := [(same, name) for same in _equal(texts) if (name := _telling([*map(traits_at, same)]))]:
        for same, name in parted:
            for at in same:
                if value := traits_at(at).get(name):
                    texts[at] += f" {name.rpartition('.')[2]}={value}"
    for same in _equal(texts):
        for number, at in enumerate(same, 1):
            texts[at] += f" ({number})"
    return texts


def pair_labels(first: Sequence[StoredResult], second: Sequence[StoredResult]) -> list[str]:
    """Return a label for each pair: the one of both sides, else the words of names that both share, else both labels.

    Shared words count where each of several pairs has its own.
    """
    sides = list(zip(labels(first), labels(second), strict=True))
    shared = [" ".join(word for word in a.split() if word in b.split()) for a, b in sides]
    named = all(stored.result.config.name for stored in (*first, *second)) and all(shared) and not _equal(shared)
    return shared if named and len(sides) > 1 else [a if a == b else f"{a} / {b}" for a, b in sides]


def _equal(texts: Sequence[str]) -> list[list[int]]:
    """Return the places of each text that stands in several."""
    places: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        places.setdefault(text, []).append(place)
    return [same for same in places.values() if len(same) > 1]


def _traits(stored: StoredResult) -> dict[str, str]:
    """Return what may tell a result from others of its name, what concerns its work first."""
    row, config, environment = stored.row, stored.result.config, stored.result.environment
    settings, of_work = conditions.settings(config), ("model.", "workload.", f"{config.backend}.")
    names = sorted(settings, key=lambda name: not name.startswith(of_work))
    board = ", ".join("-".join(uuid.split("-")[:2]) for uuid in environment.gpu_uuids) if environment else ""
    first = {"backend": row.backend, "GPU": row.gpus or "", "version": row.framework_version or ""}
    last = {"board": board, "start": stored.result.started_utc[:19]}
    return first | {name: settings[name] for name in names} | last


def _telling(traits: Sequence[Mapping[str, str]]) -> str:
    """Return the trait with the most different values; empty where these results differ in none."""
    names = dict.fromkeys(name for of_result in traits for name in of_result)
    counts = {name: len({of_result.get(name, "") for of_result in traits}) for name in names}
    name = max(names, key=lambda name: (counts[name] > 1, -LAST.get(name, 0), counts[name]))
    return name if counts[name] > 1 else ""
