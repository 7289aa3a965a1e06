"""Where an answer ends by its text: before the first of a workload's stop strings.

The same rule for every backend, on whatever tokens the engine makes. Must not know: engines, tokenizers' packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

# Tokens before those of a stop string that are decoded with it: a character's first bytes, a space that a tokenizer
# drops from the beginning of a text.
MARGIN = 8


def text_before(text: str, stops: Sequence[str]) -> str:
    """Return a text up to the first stop string in it, or the whole text without one.

    Source: lm-evaluation-harness 0.4.13, `postprocess_generated_text` in lm_eval/models/utils.py, cuts so, too.
    """
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of ids, without special tokens."""
    return str(tokenizer.decode(ids, skip_special_tokens=True))


class StopStrings:
    """Tells where the ids of an answer have come to a stop string.

    Args:
        tokenizer: Not used without stop strings.
        stops: A workload's.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer, self.stops = tokenizer, stops
        # A token has a byte at least.
        self._window = max((len(stop.encode()) for stop in stops), default=0) + MARGIN

    def end(self, earlier: Sequence[int], new: Sequence[int] = ()) -> bool:
        """Whether the text of an answer's ids has a stop string, and did not before the new ones."""
        if not self.stops:
            return False
        ids = [*earlier, *new]
        # Most ids need no look at the whole answer.
        texts = (decoded(self._tokenizer, part) for part in (ids[-self._window :], ids))
        return all(text_before(text, self.stops) != text for text in texts)
