"""Conversations of several turns: prompts that begin with what was said before. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.inputs.prompts.formats import Ids


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
