"""Token ids of a trace's prompts, equal where the trace says that blocks of tokens were equal. Pure."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

    from wattdock.inputs.prompts.formats import Item
    from wattdock.inputs.prompts.source import Source

# Begins the ids of what a trace gives no block: the end of a prompt. Traces' own are below it.
OWN_BLOCK = 2**63
# SplitMix64's step and its two multipliers. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number
# generators" (OOPSLA 2014), with the constants of Vigna's splitmix64.c.
STEP, MULTIPLIERS = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def with_blocks(
    picked: Sequence[int], source: Source, generator: Generator, vocab_size: int | None
) -> list[Item | int]:
    """Return the prompts picked of a source whose lengths have ids of blocks; equal blocks are equal tokens.

    A prompt that is picked again begins another round, whose tokens no earlier round had.
    """
    if vocab_size is None:
        return [source.items[i] for i in picked]
    key, rounds, prompts = generator.integers(2**63, dtype=np.uint64), Counter[int](), list["Item | int"]()
    offsets = np.arange(source.block_tokens, dtype=np.uint64)
    for i in picked:
        blocks = np.array([*source.blocks[i], OWN_BLOCK + i], dtype=np.uint64)
        positions = (blocks[:, None] * np.uint64(source.block_tokens) + offsets).ravel()[: source.items[i]]
        ids = _mixed(_mixed(positions) + key + np.uint64(rounds[i])) % np.uint64(vocab_size)
        prompts.append(array("I", ids.astype(np.uint32).tobytes()))
        rounds[i] += 1
    return prompts


def _mixed(values: np.ndarray) -> np.ndarray:
    """SplitMix64's output for each value as its state."""
    mixed = (values + np.uint64(1)) * np.uint64(STEP)
    for shift, multiplier in MULTIPLIERS:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(multiplier)
    return mixed ^ (mixed >> np.uint64(31))
