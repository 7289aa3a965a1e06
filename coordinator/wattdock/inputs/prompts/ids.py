"""Token ids of prompts: drawn, and repeated by a conversation's turns. Pure."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

    from wattdock.inputs.prompts.formats import Ids, Item


def with_ids(items: Sequence[Item | int], generator: Generator, vocab_size: int | None) -> tuple[Item, ...]:
    """Return the items with ids in place of lengths.

    Raises:
        ConfigError: The size of the vocabulary is needed and unknown.
    """
    lengths = [item for item in items if isinstance(item, int)]
    if lengths and vocab_size is None:
        raise ConfigError(
            "synthetic prompts need the model's vocabulary size", "give a model whose config.json tells it"
        )
    drawn = np.split(generator.integers(0, vocab_size or 1, size=sum(lengths)), np.cumsum(lengths)[:-1])
    rows = (array("I", row.astype(np.uint32).tobytes()) for row in drawn)
    return tuple(next(rows) if isinstance(item, int) else item for item in items)


def conversations(
    said: Sequence[tuple[Ids, Ids]], prefix: Ids, *, turns: int, abreast: int
) -> tuple[tuple[Ids, ...], tuple[int, ...]]:
    """Return each request's prompt, and how many of its tokens a prefix cache holds from an earlier one.

    So many conversations run abreast: all take their first turn, then all their second, and so on to the next ones. A
    turn's prompt is the prompt before it, a stand-in for that one's answer, which no cache holds, and new tokens.

    Args:
        said: Of each request, in order: its new tokens, and a stand-in for its answer.
        prefix: With which every conversation begins.
    """
    prompts, repeated = list["Ids"](), list[int]()
    for i, (new, _) in enumerate(said):
        if i // abreast % turns:
            before = prompts[i - abreast]
            prompts.append(before + said[i - abreast][1] + new)
            repeated.append(len(before))
        else:
            prompts.append(prefix + new)
            repeated.append(len(prefix) if i else 0)
    return tuple(prompts), tuple(repeated)
