"""Prompts: the bundled set, JSONL files, synthetic ids, and that passes do not share them."""

from __future__ import annotations

import gzip
import hashlib
import json
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import raises
from seams.inputs import output_limits
from seams.records import Lines

from wattdock.config import ExperimentConfig, WorkloadSpec
from wattdock.errors import Cause, ConfigError
from wattdock.inputs import PromptSet, check_prompts, load_prompts

BUNDLED_COUNT = 200


def load(source: str, pass_index: int = 0, count: int = 8, *, seed: int = 0, vocab_size: int = 1000) -> PromptSet:
    config = experiment(source, count=count, seed=seed)
    return load_prompts(config, pass_index=pass_index, vocab_size=vocab_size)


def experiment(source: str, *, count: int = 8, seed: int = 0) -> ExperimentConfig:
    prompts = {"source": source, "input_tokens": 16, "count": count}
    return ExperimentConfig.model_validate({"workload": {"prompts": prompts, "seed": seed}})


def jsonl(tmp_path: Path, *lines: object) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


def test_the_bundled_set_is_200_different_short_english_prompts() -> None:
    """8 to 120 words each, so that a prompt is small beside its answer."""
    prompts = load("bundled", count=BUNDLED_COUNT)
    texts = [item for item in prompts.items if isinstance(item, str)]
    assert len(set(texts)) == BUNDLED_COUNT
    assert all(8 <= len(text.split()) <= 120 for text in texts)


@given(seed=st.integers(0, 2**63 - 1), count=st.integers(7, 120))
def test_passes_share_no_prompt_while_the_source_has_unused_ones(seed: int, count: int) -> None:
    """A prefix cache would otherwise answer a pass that warm-up, or an earlier pass, has paid for."""
    seen: set[object] = set()
    for pass_index in range(BUNDLED_COUNT // count):
        prompts = load("bundled", pass_index, count, seed=seed)
        assert len(prompts.items) == count
        assert seen.isdisjoint(prompts.items)
        seen.update(prompts.items)
    again = load("bundled", BUNDLED_COUNT // count, count, seed=seed)
    assert not seen.isdisjoint(again.items)


def test_a_source_that_is_too_small_is_gone_through_again(tmp_path: Path) -> None:
    """Two passes of two from three prompts: the fourth is a repetition."""
    source = jsonl(tmp_path, *({"prompt": name} for name in "abc"))
    first, second = load(source, 0, 2), load(source, 1, 2)
    assert {*first.items, *second.items} == {"a", "b", "c"}


def test_a_line_is_one_prompt_in_all_passes(tmp_path: Path) -> None:
    """Passes of three of seven texts, and of all lines of a trace, which begins anew: random prompts have no lines."""
    source, text_of = jsonl(tmp_path, *({"prompt": name} for name in "abcdefg")), dict[int, object]()
    for pass_index in range(8):
        prompts = load(source, pass_index, 3)
        assert prompts.lines == 7
        lines = Lines(first=prompts.first_line, listed=len(prompts.items), total=prompts.lines)
        assert [text_of.setdefault(lines.of(i), prompts.items[i % 3]) for i in range(9)] == [*prompts.items] * 3
    assert len({*text_of.values()}) == 7
    timed = ({"arrival_s": at, "input_tokens": 10 * at + 10, "output_tokens": 1} for at in range(5))
    work = {"arrival": "trace", "prompts": {"source": jsonl(tmp_path, *timed)}, "min_requests": 3}
    config = ExperimentConfig.model_validate({"backend": "fake", "workload": work})
    again = load_prompts(config, pass_index=1, vocab_size=1000, min_requests=3)
    assert ([len(item) for item in again.items], again.first_line, again.lines) == ([10, 20, 30], 0, 5)
    assert load("synthetic").lines is None


def test_equal_seeds_give_equal_prompts_and_other_seeds_others() -> None:
    """A result names its seed, so that the prompts can be had again, on any machine and version of numpy."""
    for source in ("bundled", "synthetic"):
        assert load(source, 3, seed=5) == load(source, 3, seed=5)
        assert load(source, 3, seed=5).items != load(source, 3, seed=6).items
    bundled = [str(item)[:20] for item in load("bundled", count=3, seed=0).items]
    assert bundled == ["Write a Makefile wit", "What is inflation, h", "Rewrite this sentenc"]
    assert load("synthetic", 2, 1, seed=7).items[0][:4] == array("I", [973, 30, 562, 235])


def test_synthetic_prompts_have_exact_lengths_and_ids_below_the_vocabulary() -> None:
    """And differ from pass to pass."""
    prompts = load("synthetic", 0, 500, vocab_size=50)
    ids = np.array(prompts.items)
    assert ids.shape == (500, 16)
    assert (ids.min(), ids.max()) == (0, 49)
    assert (prompts.name, prompts.max_output_tokens) == ("synthetic-16", (None,) * 500)
    assert set(map(tuple, prompts.items)).isdisjoint(map(tuple, load("synthetic", 1, 500, vocab_size=50).items))
    # Guessing a vocabulary could send ids that the model does not have.
    with raises(ConfigError, "vocabulary"):
        load_prompts(experiment("synthetic"), pass_index=0)


def test_the_hash_is_of_the_whole_source_whichever_part_of_it_a_pass_gets(tmp_path: Path) -> None:
    """Two results with one hash drew from one set."""
    source = jsonl(tmp_path, {"prompt": "a"}, {"prompt": "b"})
    expected = hashlib.sha256(Path(source).read_bytes()).hexdigest()
    assert load(source, 0, 1).sha256 == load(source, 1, 1, seed=9).sha256 == expected
    assert load("synthetic", 0).sha256 == load("synthetic", 1).sha256 != load("synthetic", 0, seed=1).sha256


def test_a_file_may_mix_text_and_ids_with_limits_of_their_own(tmp_path: Path) -> None:
    """Blank lines and a byte order mark do no harm; a line separator inside a text does not end it."""
    lines = ['\ufeff{"prompt": "a\u2028b"}', "", {"token_ids": [3, 1], "max_output_tokens": 5}]
    source = jsonl(tmp_path, *lines)
    prompts = load(source, 0, 2)
    by_limit = dict(zip(prompts.max_output_tokens, prompts.items, strict=True))
    assert by_limit == {None: "a\u2028b", 5: array("I", [3, 1])}
    assert prompts.name == "prompts.jsonl"


def test_a_file_without_prompts_without_utf8_or_without_existence_is_refused(tmp_path: Path) -> None:
    """Each for its own reason."""
    with raises(ConfigError, "prompts.jsonl", cause=Cause.EMPTY):
        load(jsonl(tmp_path, "", "  "))
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"prompt": "ok"}\n{"prompt": "für"}\n'.encode("latin-1"))
    with raises(ConfigError, "latin.jsonl:2", "0xfc", "UTF-8", cause=Cause.MALFORMED):
        load(str(latin))
    latin.write_bytes(gzip.compress(b'{"prompt": "ok"}'))
    with raises(ConfigError, "latin.jsonl:1", "0x8b", "JSONL or JSON"):
        load(str(latin))
    with raises(ConfigError, "'bundeld'", cause=Cause.MISSING):
        load("bundeld")
    with raises(ConfigError, cause=Cause.NOT_A_FILE):
        load(str(tmp_path))


def test_text_for_a_model_without_tokenizer_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Shapes take token ids only, from whichever source."""
    ids = jsonl(tmp_path, {"token_ids": [1]})
    check_prompts(experiment(ids), has_tokenizer=False)
    check_prompts(experiment("synthetic"), has_tokenizer=False)
    check_prompts(experiment("bundled"), has_tokenizer=True)
    with raises(ConfigError, "'bundled'"):
        check_prompts(experiment("bundled"), has_tokenizer=False)


def test_staggered_starts_spread_the_first_round_evenly_and_touch_nothing_after_it() -> None:
    """Eight slots end after one to eight eighths of the full length."""
    spec = WorkloadSpec(max_output_tokens=80, batch_size=8, arrival="closed", staggered_start=True)
    for prompts in (3, 8, 20):
        limits, first = output_limits([None] * prompts, spec, (0, 0))
        assert sorted(first) == [10, 20, 30, 40, 50, 60, 70, 80]
        assert limits == (80,) * prompts


def test_a_prompt_file_s_own_limits_stay() -> None:
    """Whoever wrote them meant them."""
    drawn = WorkloadSpec.model_validate({"max_output_tokens": {"distribution": "uniform", "min": 20, "max": 90}})
    assert output_limits([7, None, 7], drawn, (0, 0))[0][::2] == (7, 7)
    assert output_limits([7, None], WorkloadSpec(), (0, 0)) == ((7, None), ())


def drawn_experiment(count: int) -> ExperimentConfig:
    """Return an experiment whose lengths and arrivals are drawn, with two measured passes."""
    lognormal = {"distribution": "lognormal", "mean": 60, "std": 30, "max": 200}
    prompts = {"source": "synthetic", "input_tokens": lognormal, "count": count}
    arrival = {"arrival": "gamma", "rate_per_s": 2.0, "burstiness": 0.5}
    workload = {"prompts": prompts, "max_output_tokens": lognormal, **arrival}
    return ExperimentConfig.model_validate({"backend": "fake", "workload": workload, "repeats": {"passes": 2}})


def test_lengths_drawn_for_a_pass_are_the_seed_s_and_no_other_pass_s() -> None:
    """Prompts and answers from distributions: equal arguments give equal passes, and each pass has its own."""
    config = drawn_experiment(400)
    first, again, other = (load_prompts(config, pass_index=index, vocab_size=1000) for index in (0, 0, 1))
    assert first == again
    assert first.sha256 == other.sha256
    inputs = [[len(item) for item in drawn.items] for drawn in (first, other)]
    assert inputs[0] != inputs[1]
    assert first.max_output_tokens != other.max_output_tokens
    # A prompt's length says nothing of its answer's.
    limits = [limit or 0 for limit in first.max_output_tokens]
    assert abs(np.corrcoef(np.array([inputs[0], limits]))[0, 1]) < 0.2
    assert np.mean(inputs) == pytest.approx(60, abs=3)


def test_warm_up_passes_do_equal_work_on_prompts_of_their_own() -> None:
    """Else whether tokens/s still drift would hang on what each drew."""
    config = drawn_experiment(50)
    measured, *warm_ups = (load_prompts(config, pass_index=index, vocab_size=1000) for index in (1, 2, 3))
    shapes = [(drawn.max_output_tokens, drawn.arrivals_ns, tuple(map(len, drawn.items))) for drawn in warm_ups]
    assert shapes[0] == shapes[1]
    assert warm_ups[0].items != warm_ups[1].items
    assert measured.max_output_tokens != warm_ups[0].max_output_tokens


def test_each_restart_draws_its_own_and_experiments_of_one_seed_share_it(tmp_path: Path) -> None:
    """Ids, lengths, limits, arrivals and the sampling seed; texts of a file are the same in all restarts."""
    config = drawn_experiment(50)
    first, second = (load_prompts(config, pass_index=0, restart=restart, vocab_size=1000) for restart in (0, 1))
    for drawn in ("items", "max_output_tokens", "arrivals_ns", "seed"):
        assert getattr(first, drawn) != getattr(second, drawn), drawn
    lengths = [tuple(map(len, prompts.items)) for prompts in (first, second)]
    assert lengths[0] != lengths[1]
    other = config.model_copy(update={"backend": "vllm", "name": "an arm"})
    assert load_prompts(other, pass_index=0, restart=1, vocab_size=1000) == second
    texts = experiment(jsonl(tmp_path, *({"prompt": name} for name in "abcdefgh")))
    in_restarts = [load_prompts(texts, pass_index=0, restart=restart).items for restart in (0, 1)]
    assert in_restarts[0] == in_restarts[1]


@pytest.mark.parametrize("arrival", ["batch", "closed"])
def test_a_batch_that_a_pass_cannot_fill_is_refused(tmp_path: Path, arrival: str) -> None:
    """Its row would say 8 in flight where 4 were; time or more requests fill it, from the same prompts."""
    source = jsonl(tmp_path, *({"prompt": f"Count to {number}"} for number in range(4)))
    work = {"prompts": {"source": source}, "batch_size": 8, "arrival": arrival}

    def checked(**more: object) -> None:
        check_prompts(ExperimentConfig.model_validate({"backend": "vllm", "workload": work | more}))

    for few in ({}, {"min_requests": 4}, {"prompts": {"source": source, "count": 4}}):
        with raises(ConfigError, "batch_size: 8", "4 requests", "workload.min_requests: 8", "workload.batch_size: 4"):
            checked(**few)
    for enough in ({"min_requests": 8}, {"min_duration_s": 1}, {"batch_size": 4}):
        checked(**enough)


def test_a_pass_has_the_prompts_that_its_requests_send(tmp_path: Path) -> None:
    """Where the requests are given, no more prompts are drawn, and the next pass goes on behind them."""
    source = jsonl(tmp_path, *({"prompt": f"Count to {number}"} for number in range(8)))
    workload = {"prompts": {"source": source}, "batch_size": 3, "min_requests": 4}
    config = ExperimentConfig.model_validate({"workload": workload})
    assert config.workload.prompts_per_pass == 4
    assert PromptSet.summary(config).text == "4 requests per pass; 4 of 8 prompts (format: wattdock's prompts)"
    sent = [load_prompts(config, pass_index=index, min_requests=4).items for index in range(2)]
    assert [len(items) for items in sent] == [4, 4]
    assert len({*sent[0], *sent[1]}) == 8
