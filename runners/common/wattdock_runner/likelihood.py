"""How likely a model finds a text after another: the tokens of both, the engine's scores, and when it computed them.

Must not know: engines, protobuf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from wattdock_runner.clock import Span, now_ns
from wattdock_runner.errors import InvalidRequest, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock_runner.serving import Engine


class PairScore(NamedTuple):
    """The score of a pair; runner.proto explains the figures."""

    log_likelihood: float
    is_greedy: bool
    tokens: int
    left_out: int


def score(
    engine: Engine | None, backend: str, pairs: Sequence[tuple[str, str]], batch_size: int
) -> tuple[list[PairScore], Span]:
    """Return the score of each pair of context and continuation, in order, and when the engine computed them.

    Raises:
        Unsupported: The engine tells none, or works in several processes.
        InvalidRequest: The model has no tokenizer, a continuation no token, or one more than the model has room for.
    """
    if engine is None or not engine.most_scored:
        raise Unsupported(f"{backend}, as it is loaded, tells no log-likelihoods; take tasks that generate text")
    if engine.tokenizer is None:
        raise InvalidRequest("this model folder has no tokenizer, and log-likelihoods are of texts")
    whole = [split_pair(engine.tokenizer, *pair) for pair in pairs]
    rows = [(ids[-engine.most_scored :], tokens) for ids, tokens in whole]
    if wrong := [at for at, (ids, tokens) in enumerate(rows) if not 0 < tokens < len(ids)]:
        tokens = rows[wrong[0]][1]
        raise InvalidRequest(
            f"the continuation of pair {wrong[0]} has {tokens} tokens; give 1 to {engine.most_scored - 1}"
        )
    # Rows of about the same length are padded least.
    order = sorted(range(len(rows)), key=lambda at: -len(rows[at][0]))
    told: dict[int, tuple[float, bool]] = {}
    engine.drain()
    start_ns = now_ns()
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        told |= zip(batch, engine.score([rows[at] for at in batch]), strict=True)
    engine.drain()
    span = Span("log-likelihood", start_ns, now_ns())
    left_out = [len(ids) - len(row) for (ids, _), (row, _) in zip(whole, rows, strict=True)]
    return [PairScore(*told[at], rows[at][1], left_out[at]) for at in range(len(rows))], span


def split_pair(tokenizer: Any, context: str, continuation: str) -> tuple[list[int], int]:
    """Return the ids of a context and its continuation, and how many are the continuation's.

    Source: lm-evaluation-harness 0.4.13, `TemplateLM.loglikelihood` and `_encode_pair` in lm_eval/api/model.py,
    `HFLM.tok_encode` and `prefix_token_id` in lm_eval/models/huggingface.py.
    """
    start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if not (kept := context.rstrip()):
        ids = list(tokenizer(context + continuation, add_special_tokens=False).input_ids)
        ids = ids if ids[:1] == [start] or start is None else [start, *ids]
        return ids, len(ids) - 1
    # A text that begins with the special token itself gets no second.
    adds = start is None or not context.startswith(tokenizer.decode([start]))
    before, whole = (
        list(tokenizer(text, add_special_tokens=adds).input_ids) for text in (kept, context + continuation)
    )
    return [*before, *whole[len(before) :]], len(whole) - len(before)
