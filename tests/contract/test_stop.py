"""Where an answer ends by its text, on every backend: the same text, whatever the engine's tokens are."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from contract.runner_process import ids_prompt, output_ids, workload
from contract.subjects import TINY_LLAMA, write_config
from tokenizers import Tokenizer, decoders, models

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Runner
    from contract.subjects import Subject

# The texts of six successive tokens in the letters of a byte-level vocabulary; an \u00f6 begins in one and ends in the
# next.
PIECES = ("watt", "\u0120is", "\u0120a\u0120j\u00c3", "\u00b6ule", "\u010a\u010a", "Q:")
# Stop strings, the text before the first of them, and how many tokens it takes to see one.
CASES = (
    (["at"], "w", 1),
    (["t i"], "wat", 2),
    (["wa"], "", 1),
    (["\u00f6"], "watt is a j", 4),
    (["\n\nQ"], "watt is a j\u00f6ule", 6),
    (["joule", "tt", "at"], "w", 1),
    (["joule"], "watt is a j\u00f6ule\n\nQ:", 6),
)
# The fake backend's tokenizer has words of its own.
FAKE_CASES = (
    (["5"], "t4 t", 2),
    (["4 t"], "t", 2),
    (["t"], "", 1),
    (["t9", "6"], "t4 t5 t", 3),
    (["joule"], "t4 t5 t6 t7 t8 t9", 6),
)


def write_pieces(folder: Path, ids: list[int]) -> Path:
    """Write a model folder whose tokenizer gives these ids the texts of PIECES."""
    texts = {token: f"<{token}>" for token in range(TINY_LLAMA["vocab_size"])} | dict(zip(ids, PIECES, strict=True))
    tokenizer = Tokenizer(models.BPE({text: token for token, text in texts.items()}, []))
    tokenizer.decoder = decoders.ByteLevel()
    write_config(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def load_another(runner: Runner, model: Path, **fields: Any) -> None:
    """See that unload frees the engine, harmlessly twice, and that a load tells its progress and its span."""
    runner.unload()
    runner.unload()
    assert runner.refused_pass(workload(), [ids_prompt(10)])[0] == "FAILED_PRECONDITION"
    before_ns = time.monotonic_ns()
    loaded, progress = runner.load(model, **fields)
    assert before_ns < loaded.span.start_ns < loaded.span.end_ns < time.monotonic_ns()
    assert loaded.span.name == "load"
    assert progress


def test_after_another_load_an_answer_ends_before_the_first_stop_string(
    runner: Runner, subject: Subject, tmp_path: Path
) -> None:
    """Inside a token, over two, at the very beginning, within a character, or nowhere; neighbours go on.

    What the engine generated for it is counted and told, and what a static batch computes after it is not.
    """
    prompts = [ids_prompt(length) for length in range(4, 80)]
    asked = {"max_output_tokens": len(PIECES), "return_token_ids": True, "return_text": True}
    answers = output_ids(runner.generate(workload(**asked), prompts))
    # The tokenizer gives each of them a text of its own.
    chosen = next(at for at, ids in enumerate(answers) if len({*ids}) == len(PIECES) and min(ids) > 2)
    ids = answers[chosen]
    if subject.name != "fake":
        code, detail = runner.refused_pass(workload(stop=["a"]), prompts)
        assert (code, "no tokenizer" in detail) == ("INVALID_ARGUMENT", True), detail
    load_another(runner, write_pieces(tmp_path / "model", ids), **subject.load_fields)
    for stop, text, tokens in FAKE_CASES if subject.name == "fake" else CASES:
        result = runner.generate(workload(**asked, stop=stop), [prompts[chosen], prompts[chosen - 1]])
        record = result.requests[0]
        reason = "length" if stop == ["joule"] else "stop"
        assert (record.text, record.output_tokens, record.finish_reason) == (text, tokens, reason), stop
        assert list(record.output_ids.ids) == ids[:tokens]
        assert result.summary.output_tokens == result.output_tokens[-1] == tokens + result.requests[1].output_tokens
    code, detail = runner.refused_pass(workload(stop=["a", ""]), prompts)
    assert (code, "a stop string is empty" in detail) == ("INVALID_ARGUMENT", True), detail
