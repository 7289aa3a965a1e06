"""What answers whose lengths nothing declares are in the long run, by all requests of all passes. Pure."""

from __future__ import annotations

import hashlib
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wattdock.analysis.block_fit import CONTEXT, PROMPTS, SECONDS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from numpy.typing import NDArray

    from wattdock.analysis.measured import Measured
    from wattdock.records import PassRecord, RequestRecord

    Floats = NDArray[np.float64]

# Number of signs of each draw, and so of sums in a sketch: a variance is known to √(2 ÷ 64), 18 %.
SIGNS = 64


class Answers(NamedTuple):
    """Work of a request in the long run, as far as only the requests that were sent tell it.

    Attributes:
        mean_tokens: Mean of an answer; None where lengths are declared, or unknown.
        amounts: Mean amount of each kind of work that is not declared.
        of_prompts: Relative error of (amount ÷ answer tokens) of each kind by each draw of a prompt; the sum of their
            squares is its variance; shape (draws,) each.
        of_answers: The same by each draw of an answer to a prompt; shape (requests,) each.
        signs: Of each draw of a prompt, the same wherever this prompt is sent; shape (draws, `SIGNS`).
    """

    mean_tokens: float | None = None
    amounts: Mapping[str, float] = {}
    of_prompts: Mapping[str, Floats] = {}
    of_answers: Mapping[str, Floats] = {}
    signs: Floats = np.empty((0, SIGNS))

    def error(self, slopes: Mapping[str, float]) -> tuple[float, list[float]]:
        """Return the relative standard uncertainty of a figure with these slopes, and the sketch of its prompts' part.

        The mean square of the difference of two figures' sketches is the variance that lists of prompts make in their
        difference, however many prompts both have, and however alike the answers are.

        Source: Alon, Matias and Szegedy, STOC 1996: the mean square of sums with random signs is the sum of squares.
        """
        of_prompts, of_answers = (
            np.sum([slope * errors[kind] for kind, slope in slopes.items()], axis=0)
            for errors in (self.of_prompts, self.of_answers)
        )
        size, sketch = float(np.linalg.norm(of_prompts)), of_prompts @ self.signs
        scale = size * sqrt(SIGNS) / (float(np.linalg.norm(sketch)) or 1.0)
        return float(np.hypot(size, np.linalg.norm(of_answers))), (sketch * scale).tolist()


DECLARED = Answers()


def draw_of(run_pass: PassRecord, request: RequestRecord, *, synthetic: bool) -> Hashable:
    """Return what tells the draw of a request's prompt from others; None where that is unknown."""
    if lines := run_pass.declared.lines:
        return lines.of(request.index)
    # Older records do not tell lines: each restart sends the same prompt in the same place.
    return request.prompt_hash if synthetic else (run_pass.index, request.index)


def undeclared_answers(measured: Measured) -> Answers:
    """Return the long run's work of answers that may end early, from all that were sent.

    A window soon after the start holds too few of the longest answers. Every request that a pass began ends in it, so
    that sums over them hang on no instant.

    Source: Wald's identity (which request is the last one hangs on those before it only); the variance of a ratio by
    two stages of sampling, of prompts (lines of a file) and of answers to each.
    """
    passes, is_synthetic = measured.pass_records, measured.config.prompts.source == "synthetic"
    if measured.config.command or any(run_pass.declared.output_tokens for run_pass in passes):
        return DECLARED
    whole = ((run_pass, part) for run_pass in passes for part in run_pass.requests)
    sent = [(run_pass, part) for run_pass, part in whole if part.index >= run_pass.declared.staggered]
    prompts = np.array([part.prompt_tokens or 0 for _, part in sent], dtype=np.float64)
    answers = np.array([part.output_tokens or 0 for _, part in sent], dtype=np.float64)
    if not answers.any():
        return DECLARED
    numbers: dict[Hashable, int] = {}
    keys = (draw_of(run_pass, part, synthetic=is_synthetic) for run_pass, part in sent)
    of_draw = np.array([numbers.setdefault(at if key is None else key, len(numbers)) for at, key in enumerate(keys)])
    _, firsts, counts = np.unique(of_draw, return_index=True, return_counts=True)
    times: Floats = counts.astype(np.float64)
    lines = passes[0].declared.lines
    seen = min(1.0, len(times) / lines.total) if lines else 0.0
    amounts = {CONTEXT: np.maximum(answers - 1, 0) * (prompts + answers / 2)}
    if not passes[0].declared.prompt_tokens:
        amounts[PROMPTS] = prompts
    amounts = {kind: amount for kind, amount in amounts.items() if amount.any()}
    of_prompts: dict[str, Floats] = {}
    of_answers: dict[str, Floats] = {}
    for kind in (PROMPTS, CONTEXT, SECONDS):
        # What is declared for each request is off by the mean of the answers only.
        amount = amounts.get(kind, np.ones(len(sent)))
        off = (amount / amount.mean() - answers / answers.mean()) / len(sent)
        sums = np.bincount(of_draw, off).astype(np.float64)
        about = (off - (sums / times)[of_draw]) * np.sqrt(times / np.maximum(times - 1, 1))[of_draw]
        of_prompts[kind] = sums * sqrt((1 - seen) * len(times) / max(1, len(times) - 1))
        of_answers[kind] = about * sqrt(seen)
    means = {kind: float(amount.mean()) for kind, amount in amounts.items()}
    told = ((sent[first][1].prompt_hash, key) for first, key in zip(firsts, numbers, strict=True))
    signs = _signs(key if prompt_hash is None else prompt_hash for prompt_hash, key in told)
    return Answers(float(answers.mean()), means, of_prompts, of_answers, signs)


def _signs(keys: Iterable[Hashable]) -> Floats:
    digests = b"".join(hashlib.blake2b(str(key).encode(), digest_size=SIGNS // 8).digest() for key in keys)
    return np.unpackbits(np.frombuffer(digests, dtype=np.uint8)).reshape(-1, SIGNS).astype(np.float64) * 2 - 1
