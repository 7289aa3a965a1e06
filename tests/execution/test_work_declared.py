"""Work sent against work declared, in whole studies in virtual time: right engines pass, each fault is named."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING, Any

import pytest
from make.machine import VirtualMachine, VirtualRunner, experiment, study
from make.outcomes import known

from wattdock.reports import points_of, scale
from wattdock_runner.arrivals import Admission

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Called

    from wattdock.analysis import Check, ExperimentResult
    from wattdock.records import PassRecord, RequestRecord
    from wattdock.store import StoredResult

GPU = "GPU-1"
NAME = "work sent against work declared"
CLOSED: dict[str, Any] = {
    "arrival": "closed",
    "batch_size": 8,
    "staggered_start": True,
    "max_output_tokens": 20,
    "min_duration_s": 60,
    "prompts": {"source": "synthetic", "input_tokens": 100, "count": 24},
    "ignore_eos": True,
}
PEOPLE = {"distribution": "lognormal", "mean": 40, "std": 40, "max": 300}


def stored_result(tmp_path: Path, **settings: Any) -> StoredResult:
    machine = VirtualMachine(tmp_path, power={GPU: lambda _: 300.0})
    [stored] = machine.run(study(experiment("work", **settings))).results
    assert stored.result.error is None, stored.result.error
    return stored


def check_of(result: ExperimentResult) -> Check:
    return next(check for check in known(result.audit).checks if check.name == NAME)


def requests_in_window(stored: StoredResult) -> int:
    """Return how many requests of the first pass have their first token in its headline's window."""
    [window, *_] = known(known(stored.result.energy).windows).of_headline()
    return sum(window.holds(request.first_token_ns) for request in stored.restarts()[0].passes[0].requests)


def spoiled(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[RequestRecord], RequestRecord]) -> None:
    """Have the virtual engine say something else of each request."""
    generate = VirtualRunner.generate

    def changed(self: VirtualRunner, *args: Any, **options: Any) -> PassRecord:
        done = generate(self, *args, **options)
        requests = tuple(map(spoil, done.requests))
        tokens = sum(request.output_tokens or 0 for request in requests)
        share = tokens / done.output_tokens
        series = replace(done.tokens, output_tokens=(done.tokens.output_tokens * share).astype(int))
        return replace(
            done,
            requests=requests,
            tokens=series,
            output_tokens=int(series.output_tokens[-1]),
            prompt_tokens=sum(request.prompt_tokens or 0 for request in requests),
        )

    monkeypatch.setattr(VirtualRunner, "generate", changed)


def staggered_at_each_repeat(self: Admission[Any], index: int) -> Any:
    """The fault of the withdrawn figure: the first requests come back whenever the list of prompts begins again."""
    place = index % len(self._prompts)
    return self._first[place] if place < len(self._first) else self._prompts[place]


def test_a_list_that_is_gone_through_many_times_is_the_declared_work(tmp_path: Path) -> None:
    """Each of three restarts sends its own draw, about nine times over, staggered once."""
    stored = stored_result(tmp_path, workload=CLOSED, repeats={"restarts": 3, "passes": 1})
    assert check_of(stored.result).status == "pass"
    passes = known(stored.result.procedure).mix
    assert [each.mismatches for each in passes] == [{}, {}, {}]
    assert [each.answer_tokens for each in passes] == [each.declared_answer_tokens for each in passes]
    assert all(abs(known(each.draw_difference)) < 0.01 for each in passes)
    declared = [restart.passes[0].declared for restart in stored.restarts()]
    assert [(each.prompt_tokens, each.output_tokens) for each in declared] == [(100.0, 20.0)] * 3
    assert all((each.repeated_prompts or 0) >= 7 * 24 for each in passes)
    hashes = [{request.prompt_hash for request in restart.passes[0].requests} for restart in stored.restarts()]
    assert not hashes[0] & hashes[1]


def test_a_bundle_of_a_real_runner_is_right_when_it_is_audited_anew(called: Called, tmp_path: Path) -> None:
    """The runner's own process, a list that begins again many times, a bundle, and its records read back."""
    work = {name: value for name, value in CLOSED.items() if name not in ("prompts", "min_duration_s")}
    settings = {**work, "prompts.source": "synthetic", "prompts.count": 24, "prompts.input_tokens": 100}
    settings["min_requests"] = 600
    options = [word for name, value in settings.items() for word in ("--set", f"workload.{name}={json.dumps(value)}")]
    ran = called(
        "run", "--backend", "fake", "--model", "shape:tiny-llama", "--restarts", "2", "--passes", "1", *options
    )
    assert ran.returncode == 0, ran.stderr
    bundle = tmp_path / "b.tar"
    assert called("bundle", "create", "results", "-o", bundle).returncode == 0
    [result] = json.loads(called("show", bundle, "--again", "--json").stdout)
    [check] = [check for check in result["audit"]["checks"] if check["name"] == NAME]
    assert check["status"] == "pass", check
    passes = result["procedure"]["mix"]
    assert [each["mismatches"] for each in passes] == [{}, {}]
    assert all(each["repeated_prompts"] == 600 - 24 for each in passes)


def test_a_start_that_is_staggered_again_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each request's limit."""
    monkeypatch.setattr(Admission, "_prompt", staggered_at_each_repeat)
    stored = stored_result(tmp_path, workload=CLOSED, repeats={"restarts": 2, "passes": 1})
    check = check_of(stored.result)
    assert check.status == "fail"
    assert any("limit" in key for each in known(stored.result.procedure).mix for key in each.mismatches)
    assert known(stored.result.audit).reasons[0].question == "wrong"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [None, 64, 256])
def test_lengths_like_peoples_are_never_called_wrong(tmp_path: Path, seed: int, count: int | None) -> None:
    """A draw lies several percent from the long run, however often its list is gone through, which is no fault."""
    work = CLOSED | {"max_output_tokens": PEOPLE, "min_duration_s": 120, "seed": seed}
    work["prompts"] = {"source": "synthetic", "input_tokens": PEOPLE, "count": count}
    stored = stored_result(tmp_path, workload=work, repeats={"restarts": 1, "passes": 1})
    result, procedure = stored.result, known(stored.result.procedure)
    assert (procedure.answers_difference, check_of(result).status) == (0, "pass")
    # As large a standard deviation as mean, of prompts and of answers, a list however often it is sent.
    drawn = min(count or 1000, requests_in_window(stored))
    assert procedure.draw_chance == pytest.approx(sqrt(2 / drawn), rel=0.5)
    assert 0 < abs(known(procedure.draw_difference)) < 3 * procedure.draw_chance


def test_prompts_two_percent_longer_than_declared_are_wrong_where_lengths_are_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a window cuts answers of 8 in flight, 250 requests tell the mix within 0.5 %, three restarts within 0.3."""
    spoiled(monkeypatch, lambda request: replace(request, prompt_tokens=102))
    repeats, lead_in = {"restarts": 3, "passes": 1}, {"profile": "lead-in", "lead_in_s": 20}
    result = stored_result(tmp_path, workload=CLOSED, repeats=repeats, warmup=lead_in).result
    procedure, check = known(result.procedure), check_of(result)
    assert known(known(result.energy).windows).headline == "steady_state"
    assert procedure.draw_chance == pytest.approx(sqrt(8 / 6) / 250 / sqrt(3), rel=0.1)
    assert procedure.draw_difference == pytest.approx(0.02, abs=2 * procedure.draw_chance)
    assert (check.status, "off the long run (by chance ± 0.2" in check.figure) == ("fail", True), check.figure


@pytest.mark.parametrize(("share", "is_wrong"), [(100, False), (57, False), (45, True), (20, True)])
def test_one_early_end_in_twenty_is_seen_among_lengths_like_peoples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int, is_wrong: bool
) -> None:
    """What was declared of the same requests has no scatter: 0.9 % is within the limit, 1.1 % is wrong."""

    def halved(request: RequestRecord) -> RequestRecord:
        if request.index % share:
            return request
        return replace(request, output_tokens=(request.output_tokens or 2) // 2, finish_reason="stop")

    spoiled(monkeypatch, halved)
    work = CLOSED | {"max_output_tokens": PEOPLE, "ignore_eos": False, "min_duration_s": 120}
    result = stored_result(tmp_path, workload=work, repeats={"restarts": 3, "passes": 1}).result
    assert (check_of(result).status == "fail") is is_wrong
    difference = known(known(result.procedure).answers_difference)
    assert difference == pytest.approx(-0.5 / share, rel=0.2)
    assert (difference < -0.01) is is_wrong


def test_a_file_s_declared_work_is_that_of_the_whole_file(tmp_path: Path) -> None:
    """Though a pass sends a part of it, the same in every restart."""
    rows = [{"input_tokens": 10, "output_tokens": 10}] * 30 + [{"input_tokens": 100, "output_tokens": 10}] * 30
    source = tmp_path / "p.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work = {"prompts": {"source": str(source), "count": 8}, "arrival": "closed", "batch_size": 4, "min_duration_s": 60}
    stored = stored_result(tmp_path / "run", workload=work, repeats={"restarts": 2, "passes": 1})
    first, second = known(stored.result.procedure).mix
    declared = stored.restarts()[0].passes[0].declared
    assert (declared.prompt_tokens, declared.output_tokens) == (55, 10)
    assert (stored.result.request_tokens, stored.row.max_output_tokens) == ((55, 10), 10)
    assert first.draw_difference == second.draw_difference
    # Three of eight lines are long: 43.6 tokens of deviation about 43.75, over the root of 8, and the same in both.
    check = check_of(stored.result)
    assert (check.status, "are -20.45% off the long run (by chance ± 35.2" in check.figure) == ("pass", True)


@pytest.mark.parametrize("staggered", [False, True])
def test_forms_and_tables_tell_a_files_own_limits_and_not_the_default(
    tmp_path: Path, called: Called, staggered: bool
) -> None:
    """375 and 625 tokens in for 20 and 30 out; without lengths that are declared, the limits are those sent."""
    rows = [{"input_tokens": 375, "output_tokens": 20}, {"input_tokens": 625, "output_tokens": 30}] * 20
    source = tmp_path / "trace.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work = {"prompts": {"source": str(source)}, "arrival": "closed", "batch_size": 4, "staggered_start": staggered}
    stored = stored_result(tmp_path / "run", workload=work | {"min_duration_s": 60}, repeats={"restarts": 3})
    called("form", "model-card", stored.folder, "-o", tmp_path / "card.md")
    card = (tmp_path / "card.md").read_text(encoding="utf-8")
    assert "the declared work, requests of 500 tokens in and 25 out on average, 20.0 in for each out (" in card
    called("plot", "table", stored.folder, "-o", tmp_path / "table.md")
    [setting], [point] = scale([stored]).settings, points_of([stored])
    assert setting.name.endswith(", 500 (mean) in, 25 (mean) out")
    assert f"SHA-256 {hashlib.sha256(source.read_bytes()).hexdigest()[:8]}, " in point.work
    header, _, row = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()[:3]
    assert dict(zip(header.split("|"), row.split("|"), strict=True))[" tokens out (limit) "].strip() == "25"
    limits = [{"token_ids": [1, 2, 3], "max_output_tokens": limit} for limit in (10, 20)] * 20
    source.write_text("".join(json.dumps(row) + "\n" for row in limits))
    limited = stored_result(tmp_path / "limited", workload=work | {"ignore_eos": False}, repeats={"restarts": 1})
    assert (limited.result.request_tokens, limited.row.max_output_tokens) == ((3, 15), 15)


def test_different_texts_with_equal_ids_are_not_what_was_to_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a tokenizer that knows none of their words."""
    work = {"prompts": {"source": "bundled", "count": 12}, "min_requests": 12, "batch_size": 4}
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"vocab_size": 100}')
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    settings = {"model": str(model), "repeats": {"restarts": 1, "passes": 1}}
    right = stored_result(tmp_path / "right", workload=work, **settings).result
    spoiled(monkeypatch, lambda request: replace(request, prompt_hash=77))
    wrong = stored_result(tmp_path / "wrong", workload=work, **settings).result
    assert (check_of(right).status, check_of(wrong).status) == ("pass", "fail")
    assert [sum(each.mismatches.values()) for each in known(wrong.procedure).mix] == [11]


def test_arms_of_one_runner_share_no_prompt_where_a_cache_would_serve_it(tmp_path: Path) -> None:
    """Lengths and limits stay paired."""
    work = {"arrival": "closed", "batch_size": 4, "prompts": {"source": "synthetic", "count": 32}}
    work |= {"max_output_tokens": PEOPLE}
    for cached in (True, False):
        machine = VirtualMachine(tmp_path / str(cached), power={GPU: lambda _: 300.0})
        section = {"enable_prefix_caching": cached}
        arms = [
            experiment(name, workload=work | {"temperature": heat}, fake=section)
            for name, heat in (("a", 0.0), ("b", 1.0))
        ]
        first, second = machine.run(study(*arms)).results
        served = [stored.restarts()[0].passes[0].requests for stored in (first, second)]
        limits = [[request.max_output_tokens for request in requests] for requests in served]
        hashes = [{request.prompt_hash for request in requests} for requests in served]
        assert limits[0] == limits[1]
        assert bool(hashes[0] & hashes[1]) != cached


def ended_early(request: RequestRecord) -> RequestRecord:
    if request.index % 2:
        return request
    return replace(request, output_tokens=(request.output_tokens or 2) // 2, finish_reason="stop")


@pytest.mark.parametrize(("lengths", "status"), [(PEOPLE, "fail"), (20, "pass")])
def test_answers_that_end_early_are_wrong_where_their_lengths_were_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: Any, status: str
) -> None:
    """A plain limit is what an answer may have; a distribution is what the answers are to have."""
    spoiled(monkeypatch, ended_early)
    work = CLOSED | {"max_output_tokens": lengths, "ignore_eos": False}
    result = stored_result(tmp_path, workload=work, repeats={"restarts": 2, "passes": 1}).result
    assert check_of(result).status == status
    assert all(each.ended_early for each in known(result.procedure).mix)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda request: replace(request, prompt_hash=1, prompt_tokens=50), "another prompt"),
        (lambda request: replace(request, prompt_hash=(request.prompt_hash or 0) + (request.index == 3)), "prompt"),
        (lambda request: replace(request, max_output_tokens=40), "another output limit"),
        (lambda request: replace(request, output_tokens=19), "another answer length"),
        (lambda request: replace(request, index=request.index + 1), "another order"),
    ],
)
def test_a_request_that_was_not_what_was_to_be_sent_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[RequestRecord], RequestRecord], named: str
) -> None:
    """A cut prompt, a single other one, another limit, a shorter answer, another order."""
    spoiled(monkeypatch, spoil)
    check = check_of(stored_result(tmp_path, workload=CLOSED, repeats={"restarts": 1, "passes": 1}).result)
    assert (check.status, named in check.figure) == ("fail", True), check.figure


def test_equal_lines_of_a_file_are_repeats_though_the_list_never_begins_again(tmp_path: Path) -> None:
    """Counted by what was sent: forty equal lines are one prompt."""
    source = tmp_path / "p.jsonl"
    source.write_text('{"token_ids": [5, 6, 7]}\n' * 40)
    work = {"prompts": {"source": str(source)}, "batch_size": 4, "min_requests": 40, "max_output_tokens": 5}
    result = stored_result(tmp_path / "run", workload=work, repeats={"restarts": 1, "passes": 1}).result
    assert known(result.procedure).mix[0].repeated_prompts == 39
    cached = next(check for check in known(result.audit).checks if check.name == "cached prompts")
    told = "0 prompt tokens from a cache; 39 requests with a prompt that the pass had sent before; 1 pass with "
    told += "prompts of earlier ones"
    assert (cached.status, cached.figure) == ("pass", told)


def test_a_staggered_start_in_the_figure_is_told_from_the_declared_mix(tmp_path: Path) -> None:
    """A pass too short for a steady state counts its first, shorter answers as well."""
    work = CLOSED | {"min_duration_s": 8, "batch_size": 64}
    check = check_of(stored_result(tmp_path, workload=work, repeats={"restarts": 3, "passes": 2}).result)
    assert (check.status, "staggered start" in check.figure) == ("fail", True)
