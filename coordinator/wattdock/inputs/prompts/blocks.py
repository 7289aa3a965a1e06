"""Token ids of a trace's prompts, equal where the trace says that blocks of tokens were equal. Pure."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

    from wattdock.inputs.prompts.formats import Item
    from wattdock.inputs.prompts.source import Source


def with_blocks(
    picked: Sequence[int], source: Source, generator: Generator, vocab_size: int | None
) -> list[Item | int]:
    """Return the prompts picked of a source whose lengths have ids of blocks; equal blocks are equal tokens.

    A prompt that is picked again begins another round, whose tokens no earlier round had. A block's tokens are drawn
    where the block first appears.
    """
    if vocab_size is None:
        return [source.items[i] for i in picked]

    def draw(tokens: int = source.block_tokens) -> Any:
        return generator.integers(vocab_size, size=tokens, dtype=np.uint32)

    drawn, rounds, prompts = defaultdict[tuple[int, int], Any](draw), Counter[int](), list["Item | int"]()
    for i in picked:
        blocks: Sequence[int] = source.blocks[i]
        tokens: Any = source.items[i]
        # The end of a prompt may have no block.
        end = draw(max(0, tokens - len(blocks) * source.block_tokens))
        ids = np.concatenate([*(drawn[rounds[i], block] for block in blocks), end])[:tokens]
        prompts.append(array("I", ids.tobytes()))
        rounds[i] += 1
    return prompts
