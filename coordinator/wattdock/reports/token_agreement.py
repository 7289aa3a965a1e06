"""How far two stored results generated the same tokens for the same prompts. Pure but for reading their requests.

A split computes sums in another order, so greedy tokens of one model may part ways where two candidates are close.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wattdock.errors import ConfigError
from wattdock.store import load_requests, load_result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from wattdock.analysis import ExperimentResult

# What must be equal for tokens to be comparable, as dotted places in a result.
SAME = (
    ("environment", "model", "name"),
    ("environment", "model", "weights"),
    ("environment", "dataset_sha256"),
    ("config", "workload", "prompts"),
    ("config", "workload", "seed"),
    ("config", "workload", "temperature"),
)
# Draw a checkpoint's tensors whole, by their names, as vLLM's runner does where it says so.
DRAW_WHOLE = ("pytorch", "tensorrt")
# Draws on the host, whatever it runs on; others with the generator of the device that they run on.
DRAWS_ON_HOST = "tensorrt"
MIXED = "mixed"
# Restart, pass, and number of the request.
Key = tuple[int, int, int]


@dataclass(frozen=True)
class Answer:
    """The tokens of one request, None where an engine did not tell, and how long its prompt was."""

    ids: tuple[int, ...] | None
    prompt_tokens: int | None


@dataclass(frozen=True)
class Agreement:
    """How far the requests that both have agree.

    Attributes:
        identical: Requests whose tokens are all equal.
        prefix_share: Tokens before the first difference ÷ tokens of the shorter answer, over all requests.
        first_difference: Position of the earliest difference in any request; None without one.
    """

    requests: int
    identical: int
    prefix_share: float
    first_difference: int | None


def agreement(first: Path, second: Path) -> Agreement:
    """Return how far two result folders agree, request by request of the same restart and pass.

    Raises:
        ConfigError: They are not of the same model, weights, prompts, seed and temperature, or hold no tokens; or their
            weights are random and were not drawn alike.
        StoreError: One cannot be read.
    """
    results = [load_result(folder) for folder in (first, second)]
    for place in SAME:
        values = [_at(result, place) for result in results]
        if values[0] != values[1]:
            raise ConfigError(f"{'.'.join(place)} differs: {values[0]} and {values[1]}; tokens are not comparable")
    _require_one_draw(*results)
    before, after = (
        {key: answer for key, answer in answers(folder).items() if answer.ids} for folder in (first, second)
    )
    both = before.keys() & after.keys()
    if longer := sorted(key for key in both if before[key].prompt_tokens != after[key].prompt_tokens):
        restart, pass_, request = (at + 1 for at in longer[0])
        where = f"request {request} of restart {restart}, pass {pass_}"
        raise ConfigError(f"the prompts of {where} are not of one length; set prompts.count")
    return agreement_of(*({key: answer.ids or () for key, answer in side.items()} for side in (before, after)))


def _require_one_draw(first: ExperimentResult, second: ExperimentResult) -> None:
    """Refuse two draws of random weights: their tokens differ because the models do."""
    if not str(_at(first, ("environment", "model", "weights"))).startswith("random"):
        return
    draws = [_draw(result) for result in (first, second)]
    if draws[0] != draws[1] or MIXED in draws[0]:
        raise ConfigError(
            f"random weights of {draws[0]} and of {draws[1]} differ, so their tokens are not comparable; "
            "measure a checkpoint"
        )


def _draw(result: ExperimentResult) -> str:
    """Return by what random weights were drawn, in words; each model of GPU draws other values from one seed."""
    backend = str(_at(result, ("config", "backend")))
    names = () if backend == DRAWS_ON_HOST else _at(result, ("environment", "gpu_names"))
    device = "+".join(sorted(set(names or ()))) or "a CPU"
    arguments = _at(result, ("environment", "engine_args")) or {}
    told = arguments.get("random_weights_drawn")
    if backend in DRAW_WHOLE or told == "whole":
        return f"whole tensors on {device}"
    size = (_at(result, ("environment", "parallelism")) or {}).get("tensor_parallel_size") or 1
    experts = ", experts apart" if arguments.get("enable_expert_parallel") else ""
    mixed = f" ({MIXED} with whole tensors)" if told == MIXED else ""
    return f"{backend}'s shards{mixed} on {device}, tensor_parallel_size {size}{experts}"


def agreement_of(first: Mapping[Key, Sequence[int]], second: Mapping[Key, Sequence[int]]) -> Agreement:
    """Return how far two sets of token ids agree, where both have a request.

    Raises:
        ConfigError: They have none in common.
    """
    pairs = [(first[key], second[key]) for key in first if key in second]
    if not pairs:
        raise ConfigError("the two results have no request with tokens in common")
    prefixes = [common_prefix(*pair) for pair in pairs]
    lengths = [min(map(len, pair)) for pair in pairs]
    same = [a == b for a, b in pairs]
    differences = [prefix for prefix, equal in zip(prefixes, same, strict=True) if not equal]
    return Agreement(
        requests=len(pairs),
        identical=sum(same),
        prefix_share=sum(prefixes) / sum(lengths) if sum(lengths) else 1.0,
        first_difference=min(differences, default=None),
    )


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens at the beginning of both are equal."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(first), len(second)))


def _at(result: ExperimentResult, place: tuple[str, ...]) -> Any:
    value: Any = result.model_dump(mode="json", include={place[0]})
    for name in place:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def answers(folder: Path) -> dict[Key, Answer]:
    """Return the tokens of every request that a result folder holds.

    Raises:
        StoreError: They are not there, or cannot be read.
    """
    rows = load_requests(folder, ("restart", "pass", "index", "output_ids", "prompt_tokens"))
    return {
        (row["restart"], row["pass"], row["index"]): _answer(row["output_ids"], row["prompt_tokens"]) for row in rows
    }


def _answer(ids: Sequence[int] | None, prompt_tokens: int | None) -> Answer:
    return Answer(None if ids is None else tuple(ids), prompt_tokens)
