"""A small checkpoint for real engines, and what plain transformers says that it generates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contract.runner_process import pytorch_reference, token_bytes, workload
from contract.subjects import SERVED, write_config, write_tokenizer

from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Pass, Runner

NEW_TOKENS = 40
ANSWERS = "answers.json"
# All tests with the checkpoint share one served engine.
VLLM_SERVED_ARGS: dict[str, object] = {"max_num_seqs": 4, "num_gpu_blocks_override": 40, "block_size": 32, **SERVED}
PROMPTS = [[7, 8, 9], [3 + i % 90 for i in range(17)], [200 - i for i in range(60)], [5, 4, 3, 6, 7, 8, 9, 10, 11, 12]]


@dataclass(frozen=True)
class Checkpoint:
    """A folder with weights, a tokenizer, and generation settings that no pass may follow.

    Attributes:
        continuations: Greedy ids for PROMPTS, by plain transformers, without an end of sequence.
        eos_ids: Two ids that the checkpoint ends sequences with; some continuations hold an id of them.
    """

    folder: Path
    continuations: list[list[int]]
    eos_ids: list[int]


@dataclass(frozen=True)
class Reference:
    """What one process of plain transformers says; see tests/runners/pytorch/reference.py.

    Attributes:
        weights: Facts about random weights.
        splits: What becomes of a split into 2 and into 3 ranks: None, or the refusal.
    """

    checkpoint: Checkpoint
    weights: dict[str, Any]
    splits: list[str | None]


def make_checkpoint(folder: Path) -> None:
    """Write a small float32 Llama, and beside it what plain transformers makes of it."""
    write_config(folder, dtype="float32")
    (folder / ANSWERS).write_text(pytorch_reference(str(folder), json.dumps(PROMPTS)), encoding="utf-8")
    write_tokenizer(folder)
    eos_ids = read_reference(folder).checkpoint.eos_ids
    preferences = {"eos_token_id": eos_ids, "do_sample": True, "repetition_penalty": 1.9, "top_k": 1}
    (folder / "generation_config.json").write_text(json.dumps(preferences), encoding="utf-8")


def read_reference(folder: Path) -> Reference:
    """Read what `make_checkpoint` wrote."""
    answers = json.loads((folder / ANSWERS).read_text(encoding="utf-8"))
    continuations = answers["continuations"]
    eos_ids = [continuations[0][11], continuations[2][4]]
    return Reference(Checkpoint(folder, continuations, eos_ids), answers["weights"], answers["splits"])


def token_prompts() -> list[pb.Prompt]:
    """Return PROMPTS for the wire."""
    return [pb.Prompt(token_ids=token_bytes(ids)) for ids in PROMPTS]


def run(runner: Runner, prompts: list[pb.Prompt] | None = None, **fields: Any) -> Pass:
    """Run PROMPTS, or other prompts, in one batch, and return ids with the record."""
    requested = {"in_flight": 4, "max_output_tokens": NEW_TOKENS, "return_token_ids": True, **fields}
    return runner.generate(workload(**requested), token_prompts() if prompts is None else prompts)
