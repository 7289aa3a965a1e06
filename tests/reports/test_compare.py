"""Comparisons of results: on recorded repeats, by hand, and with the real command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from make.kept import SERVED, TRAINED
from make.rows import document, row
from make.stored import bundled, complete
from seams.analysis import SPEED, AnswerFigures, Restarts, TaskFigures
from seams.analysis import difference as difference_of
from seams.console import comparison_view, exits, require_equivalent
from seams.reports import PRIMARY, Regression, equivalence_interval, is_equivalent

from wattdock.reports import compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conftest import Called
    from seams.analysis import Difference

    from wattdock.store import StoredResult

REPO = Path(__file__).parents[2]
RECORDED: dict[str, list[float]] = json.loads((REPO / "tests/data/h200-rounds.json").read_text())["rounds"]
REPETITIONS = 20
MARGIN = 0.05


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    return difference_of(Restarts.of_values(first), Restarts.of_values(second))


def test_the_test_is_welchs_on_logarithms(stats: Any) -> None:
    """By scipy's t on the logarithms' standard errors; with the sides swapped the inverse ratio."""
    first, second = [1.0, 1.1, 1.05], [1.2, 1.4, 1.3, 1.35]
    found, back = difference(first, second), difference(second, first)
    parts = [stats.sem(np.log(side)) ** 2 for side in (first, second)]
    error, ratio = sum(parts) ** 0.5, np.log(np.mean(second) / np.mean(first))
    theirs = stats.t(sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 3), loc=ratio, scale=error)
    assert found.p_value == pytest.approx(2 * theirs.cdf(0))
    assert list(found.interval) == pytest.approx([np.exp(end) - 1 for end in theirs.interval(0.95)])
    assert (1 + found.relative) * (1 + back.relative) == pytest.approx(1)
    assert found.p_not_above(0.03) == pytest.approx(theirs.cdf(np.log(1.03)))
    # The logarithms' own test, which has geometric means.
    logs = stats.ttest_ind(np.log(second), np.log(first), equal_var=False)
    assert np.log(found.p_value) == pytest.approx(np.log(logs.pvalue), rel=0.01)
    assert found.p_not_above(0.03) + found.p_not_below(0.03) == pytest.approx(1)


def judged(first: Sequence[StoredResult], second: Sequence[StoredResult], allowed: float) -> Regression:
    """Return the verdict on an allowed regression."""
    found = compare(first, second, allowed=allowed).regression
    assert found
    return found


def splits(first: str, second: str, count: int) -> list[tuple[list[float], list[float]]]:
    """Draw five recorded rounds for each side, anew each time and never the same one on both."""
    generator = np.random.default_rng(11)
    drawn = []
    for _ in range(count):
        one = generator.permutation(RECORDED[first])
        other = one[5:] if first == second else generator.permutation(RECORDED[second])
        drawn.append((one[:5].tolist(), other[:5].tolist()))
    return drawn


def costs_more(first: Sequence[float], second: Sequence[float]) -> bool | None:
    found = compare([row("one", restarts=first)], [row("one", restarts=second)])
    return found.pairs[0].tests[PRIMARY].differs


def test_over_twenty_repetitions_a_planted_difference_is_found_and_none_is_found_in_equal_studies() -> None:
    """H200 rounds: another split of a model (15 %), and 2 % more, always; the same run against itself at most once."""
    planted = [costs_more(*drawn) for drawn in splits("TP=2 batch 8", "PP=2 batch 8", REPETITIONS)]
    alike = splits("TP=2 batch 8", "TP=2 batch 8", REPETITIONS)
    small = [costs_more(one, [1.02 * joules for joules in other]) for one, other in alike]
    equal = [costs_more(*drawn) for drawn in alike]
    assert planted == small == [True] * REPETITIONS
    # The draws share 22 rounds, so they are no independent trials; at 5 % one of twenty is what to expect.
    assert equal.count(True) <= 1
    assert None not in equal


def test_sweeps_that_differ_in_one_setting_are_matched_by_what_varies_within_them() -> None:
    """Batch size by batch size, and the setting that tells the sides apart is named with what else differs."""
    sides = [
        [
            row(
                f"{dtype}{batch}",
                {"config.fake": {"dtype": dtype}, "config.workload.batch_size": batch},
                restarts=[1, 1.01],
            )
            for batch in batches
        ]
        for dtype, batches in (("float16", (1, 2, 4)), ("bfloat16", (2, 1)))
    ]
    found = compare(*sides)
    matched = [row.result.config.workload.batch_size for pair in found.pairs for row in pair.rows]
    assert matched == [1, 1, 2, 2]
    assert found.only_in_a == ("float164",)
    [apart] = found.differs_in
    assert (apart.name, apart.a, apart.b, apart.pairs) == ("setting: fake.dtype", "float16", "bfloat16", 2)


def test_what_else_differs_between_two_results_is_named() -> None:
    """Driver, power limit, image, weights and prompts."""
    changes = {
        "environment.driver_version": "590.1",
        "environment.host_gpus.0.power_limit_w": 500.0,
        "environment.image_digest": "wattdock-vllm@sha256:00",
        "environment.model.weights": "real",
        "environment.dataset_sha256": "00",
        "environment.runner.package_versions": {"grpcio": "1.85.1", "protobuf": "7.0.0"},
    }
    found = compare([row("one", restarts=[1, 1])], [row("one", changes, restarts=[1, 1])])
    named = {one.name: (one.a, one.b) for one in found.differs_in}
    assert named["GPU power limit, W"] == ("700.0", "500.0")
    assert {"driver", "image", "weights", "prompts' SHA-256", "package: protobuf"} < named.keys()
    assert len(named) == len(changes)


def test_nothing_known_on_one_side_and_absent_on_the_other_is_no_difference() -> None:
    """None, [] and {} say no more than an absent name; beside a value they differ, and False is a value."""
    empty: dict[str, Any] = {"none": None, "list": [], "mapping": {}, "value": None, "off": False}
    sides = [row("one", {"environment.runner.engine_args": args}, restarts=[1, 1]) for args in (empty, {"value": 1})]
    for first, second in (sides, sides[::-1]):
        named = {one.name: {one.a, one.b} for one in compare([first], [second]).differs_in}
        assert named == {"engine: value": {"None", "1"}, "engine: off": {"False", "–"}}


def over(nodes: object, *, address: str = "n2:7407") -> StoredResult:
    """Return a result of TP=2 over two nodes, as such a run stores it, or on one."""
    changes: dict[str, Any] = {
        "config.backend": "vllm",
        "config.vllm": {"tensor_parallel_size": 2},
        "environment.backend": "vllm",
        "environment.gpu_count": 2,
        "environment.gpu_names": ["NVIDIA H200"] * 2,
    }
    if nodes:
        facts = {"host_name": "n2", "boot_id": "b", "gpu_uuids": ["GPU-2"], "cpu_model": "EPYC", "round_trip_s": 1e-4}
        changes |= {"config.nodes": nodes, "environment.nodes": [{"name": address, **facts}]}
    return row("one", changes, restarts=[1, 1.01, 1.02])


AGENTS = {"agents": ["n2:7407"], "pairing": "pair.pem"}


def test_what_makes_the_work_another_is_named_first() -> None:
    """Of two sweeps, prompts of another length and another limit of answers, which one pair has, before all others."""
    longer = {"config.workload.prompts.input_tokens": 6000, "environment.driver_version": "x"}
    more = longer | {"config.workload.max_output_tokens": 999}
    first = [row(name, {"config.workload.batch_size": at}, restarts=[1.0]) for at, name in enumerate("ab", 1)]
    second = [
        row(name, {"config.workload.batch_size": at, **changes}, restarts=[1.0])
        for at, (name, changes) in enumerate({"a": longer, "b": more}.items(), 1)
    ]
    assert [(found.name, found.pairs) for found in compare(first, second).differs_in] == [
        ("setting: workload.prompts.input_tokens", 2),
        ("setting: workload.max_output_tokens", 1),
        ("driver", 2),
    ]


def test_joules_of_another_unit_are_refused(called: Called) -> None:
    """A study of an engine counts tokens and a command's samples."""
    done = called("compare", SERVED, f"{TRAINED}:mode=--fsdp gpus=1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"{SERVED}:vllm smollm2-135m-instruct closed 160 counts output tokens, " in done.stderr
    assert "gpus=1 samples; name one of each that do the same work, as STUDY:EXPERIMENT" in done.stderr


def test_a_split_over_two_nodes_is_told_apart_from_the_same_split_on_one() -> None:
    """By the setting and by what the other node is; the pair is still compared, as is any with another setting."""
    found = compare([over(None)], [over(AGENTS)])
    [pair] = found.pairs
    assert pair.tests[PRIMARY].differs is not None
    named = {one.name: (one.a, one.b) for one in found.differs_in}
    assert named["setting: nodes"] == ("–", "2")
    assert (named["node 1: host_name"], named["node 1: cpu_model"]) == (("–", "n2"), ("–", "EPYC"))
    assert {name.partition(": ")[0] for name in named} == {"setting", "node 1"}


def test_the_same_split_over_other_nodes_is_the_same_experiment() -> None:
    """Started by hand or by Slurm, at whichever address; what a link is like is no condition."""
    by_hand, elsewhere = over(AGENTS), over(AGENTS | {"agents": ["b:9"], "clock_limit_j": 9.0}, address="b:9")
    by_slurm = over({"count": 2}, address="127.0.0.1:4711")
    for other in (elsewhere, by_slurm):
        assert compare([by_hand], [other]).differs_in == ()
        assert other.result.experiment_id == by_hand.result.experiment_id


def test_the_files_of_the_models_folder_that_differ_are_named() -> None:
    """Weights in many files are one condition; the folder's name and path may be equal."""
    shards = {f"model-0000{n}-of-00009.safetensors": f"{n}" for n in range(9)}
    files = {"config.json": "aa", "chat_template.jinja": "bb", **shards}
    edited = files | {"chat_template.jinja": "cc", "tokenizer.json": "dd", "model-00001-of-00009.safetensors": "x"}
    sides = [[row("one", {"environment.model.files": each}, restarts=[1, 1])] for each in (files, edited)]
    named = {one.name: (one.a, one.b) for one in compare(*sides).differs_in}
    assert named["model file: chat_template.jinja"] == ("bb", "cc")
    assert named.keys() == {f"model file: {name}" for name in ("weights", "chat_template.jinja", "tokenizer.json")}


def test_digests_of_samples_are_not_held_against_those_of_whole_files() -> None:
    """An earlier version kept 16 digits, for weights of their ends: other files still compare, weights are unknown."""
    whole = {"config.json": "a" * 64, "model.safetensors": "b" * 64}
    files = [{name: digest[:16] for name, digest in whole.items()}, whole]
    sides = [[row("one", {"environment.model.files": each}, restarts=[1, 1])] for each in files]
    named = {one.name: (one.a, one.b) for one in compare(*sides).differs_in}
    assert named == {"model file: weights": ("unknown", "b" * 64)}


def test_the_figures_are_those_of_the_results_and_their_ratio_is_told() -> None:
    """As `show` and tables have them."""
    found = compare([row("one", restarts=[1.0, 4.0])], [row("one", restarts=[0.5, 5.5])]).pairs[0].tests[PRIMARY]
    assert [found.a, found.b, found.relative] == pytest.approx([2.5, 3.0, 0.2])
    assert found.reason == "no test from 2 pairs of restarts; 3 are the least"


NO_JOULES = {f"energy.passes.{at}.total_j": None for at in range(2)}


@pytest.mark.parametrize(
    ("first", "second", "relative", "reason"),
    [
        (row("one", restarts=[1.0]), row("one", restarts=[2.0, 2.0]), 1.0, "no test from 1 pair of restarts; 3"),
        # The last restart of an interrupted run may be a part of one.
        (
            row("one", restarts=[1.0] * 5),
            row("one", {"status": "interrupted"}, restarts=[1.0, 1.0]),
            0.0,
            "interrupted in B",
        ),
        # A counter that stood still was read.
        (
            row("one", restarts=[1.0, 0.0]),
            row("one", NO_JOULES, restarts=[1.0, 1.0]),
            None,
            "0 or less, so without a ratio, in A; not measured in B",
        ),
    ],
)
def test_what_cannot_be_tested_says_why_and_rules_no_regression_out(
    first: StoredResult, second: StoredResult, relative: float | None, reason: str
) -> None:
    """The difference is shown where there is one."""
    test = compare([first], [second]).pairs[0].tests[PRIMARY]
    assert (test.difference, test.differs) == (None, None)
    assert test.relative == (None if relative is None else pytest.approx(relative))
    assert (test.reason or "").startswith(reason)
    if relative is not None:
        gate = judged([first], [second], 0.03)
        assert gate.verdict == "cannot be decided"
        assert gate.lines[0].startswith(f"one: {reason}")
        assert gate.advice == "measure more restarts"


@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        ([1.10, 1.11, 1.12], "regression"),
        ([1.00, 1.01, 1.02], "no regression"),
        ([0.80, 0.81, 0.82], "no regression"),
        ([1.00, 1.05, 1.10], "cannot be decided"),
    ],
)
def test_a_regression_is_shown_ruled_out_or_cannot_be_decided(second: list[float], verdict: str) -> None:
    """By where the interval lies: above 5 %, below it, or around it."""
    assert judged([row("one", restarts=[0.99, 1.00, 1.01])], [row("one", restarts=second)], 0.05).verdict == verdict


def test_without_joules_speed_is_judged_and_less_of_it_is_worse() -> None:
    """Twice the seconds for the same tokens."""
    no_joules = {f"energy.passes.{at}.total_j": None for at in range(3)}
    slow = no_joules | {f"energy.passes.{at}.duration_s": 100.0 + at for at in range(3)}
    fast = no_joules | {f"energy.passes.{at}.duration_s": 50.0 + at for at in range(3)}
    sides = [[row("one", one, restarts=[1, 1, 1])] for one in (fast, slow)]
    found = compare(*sides)
    assert found.pairs[0].main.quantity == SPEED
    assert found.pairs[0].main.relative == pytest.approx(-0.5, abs=0.01)
    assert judged(sides[0], sides[1], 0.05).verdict == "regression"
    assert judged(sides[1], sides[0], 0.05).verdict == "no regression"


def test_a_result_that_the_other_side_lacks_leaves_a_regression_undecided() -> None:
    """What was not measured again may be what got worse."""
    both = row("one", restarts=[1.0, 1.0, 1.01])
    sides = [both, row("two", restarts=[1, 1])], [both]
    found = compare(*sides)
    assert found.only_in_a == ("two",)
    gate = judged(*sides, 0.05)
    assert gate.verdict == "cannot be decided"
    assert gate.lines == ("two: in A only", "1 of 1 pairs: not worse than allowed")
    assert gate.advice == "measure on both sides what only one has, or leave it out"
    assert judged(*sides[::-1], 0.05).lines == ("two: in B only", "1 of 1 pairs: not worse than allowed")


def test_a_pair_is_called_what_both_sides_call_it() -> None:
    """One name where it is the same experiment's; both names where two are compared that differ."""
    same = compare([row("one", restarts=[1, 1])], [row("one", {"config.workload.seed": 5}, restarts=[1, 1])])
    other = compare([row("one", restarts=[1, 1])], [row("two", restarts=[1, 1])])
    assert [found.pairs[0].label for found in (same, other)] == ["one", "one / two"]


def test_pairs_of_a_sweep_are_called_by_the_words_that_both_sides_names_share() -> None:
    """As the user or the sweep named them, where that tells the pairs apart; else by both names."""

    def named(*names: str, seed: int) -> list[StoredResult]:
        return [
            row(name, {"config.workload.batch_size": size, "config.workload.seed": seed}, restarts=[1, 1])
            for size, name in enumerate(names, 1)
        ]

    def called(*sides: list[StoredResult]) -> list[str]:
        return [pair.label for pair in compare(*sides).pairs]

    first = named("--seed=1 old", "--fsdp old", seed=0)
    assert called(first, named("--seed=1 new", "--fsdp new", seed=5)) == ["--seed=1", "--fsdp"]
    other = named("small", "big", seed=5)
    assert called(first, other) == ["--seed=1 old / small", "--fsdp old / big"]


def put(folder: Path, name: str, restarts: Sequence[float], study: str = "s") -> None:
    (folder / name).mkdir(parents=True)
    own = document({"experiment_id": "0" * 64, "study": {"study_id": study, "attempt": 1}}, restarts=restarts)
    (folder / name / "result.json").write_text(json.dumps(own))


def test_a_side_that_others_disturbed_is_named_with_what_they_did() -> None:
    """Its figures may differ for that reason alone."""
    checks = [{"name": "CPU use by others", "status": "fail", "figure": "61% in the worst pass"}]
    disturbed = row("b", {"config.name": "x", "audit.checks": checks})
    compared = compare([row("a", {"config.name": "x"})], [disturbed])
    [line] = compared.disturbed
    assert line.startswith("B of x: CPU use by others: 61% ")
    assert any(line in str(part) for part in comparison_view(compared))


def test_the_command_ends_with_its_verdict(called: Called) -> None:
    """9 for a regression, 10 where it cannot be decided, 0 for none, 2 for what makes no sense; a bundle is a side."""
    for side, restarts in {"base": [0.99, 1.00, 1.01], "worse": [1.19, 1.20, 1.21], "close": [0.9, 1.0, 1.2]}.items():
        put(Path(side), "20260101T000000-fake-0", restarts)
    put(Path("later"), "20260101T000000-fake-0", [0.99, 1.00, 1.01], study="t")
    complete(Path("base/20260101T000000-fake-0"))
    bundle = bundled(Path("base"), Path("base.tar")).path
    for sides, margin, code, line in (
        ((bundle, "worse"), "3%", 9, "regression: version three"),
        (("base", "close"), "0.03", 10, "whether it regressed cannot be decided: version three"),
        ((bundle, "base"), "3%", 0, ""),
        (("base", "later"), "3%", 10, "whether it regressed cannot be decided: version three: no test: one session on"),
        (("base", "worse"), "3 percent", 2, "--max-regression 3 percent"),
        (("base", "nothing"), "3%", 2, "nothing: no such folder"),
    ):
        done = called("compare", *sides, "--max-regression", margin)
        # Rows made here are of no version.
        said = [text for text in done.stderr.splitlines() if "analysed by another version" not in text]
        assert (done.returncode, len(said)) == (code, 1 if code else 0), done.stderr
        assert "".join(said).removeprefix("wattdock: ").startswith(line)


def test_a_side_without_joules_is_no_comparison_and_no_gate_is_passed_by_speed(called: Called) -> None:
    """Exit code 10 with the side and why; joules that are gone may be what got worse, whatever the speed is."""
    put(Path("base"), "20260101T000000-fake-0", [0.99, 1.00, 1.01])
    put(Path("bare"), "20260101T000000-fake-0", [0.99, 1.00, 1.01])
    file = Path("bare/20260101T000000-fake-0/result.json")
    made = json.loads(file.read_text())
    for part in (*made["energy"]["passes"], *made["energy"]["windows"]["passes"]):
        part["total_j"] = None
    made["energy"] |= {"total_j": None, "reason": "no NVIDIA driver"}
    file.write_text(json.dumps(made | {"budget": None}))
    for sides, side in ((("base", "bare"), "B"), (("bare", "base"), "A")):
        why = f"version three: J/output token: not measured in {side} ({side}: no NVIDIA driver)"
        for margin, line in (((), "nothing was compared"), (("--max-regression", "3%"), "whether it regressed cannot")):
            done = called("compare", *sides, *margin)
            [said] = [text for text in done.stderr.splitlines() if "analysed by another version" not in text]
            assert (done.returncode, said.startswith(f"wattdock: {line}")) == (10, True)
            assert (why in said) if not margin else (f"not measured in {side}; measure on both sides" in said)
        assert "output tokens/s" in done.stdout
    # Where neither has joules, speed is what there is.
    assert called("compare", "bare", "bare").returncode == 0


def test_results_of_different_gpu_models_are_compared_only_where_that_is_asked(called: Called) -> None:
    """Their difference is the GPUs', too; on other boards of one model no word is needed."""
    for side, name, board in (("h100", "H100", "GPU-a"), ("other", "H100", "GPU-b"), ("h200", "H200", "GPU-c")):
        put(Path(side), "20260101T000000-fake-0", [0.99, 1.0, 1.01])
        file = Path(side, "20260101T000000-fake-0/result.json")
        result = json.loads(file.read_text())
        result["environment"] |= {"gpu_names": [name], "gpu_uuids": [board], "gpu_count": 1}
        file.write_text(json.dumps(result))
    done = called("compare", "h100", "h200")
    assert (done.returncode, done.stdout) == (2, "")
    assert all(word in done.stderr for word in ("H100", "H200", "--across-models"))
    assert called("compare", "h100", "h200", "--across-models").returncode == 0
    done = called("compare", "h100", "other")
    assert (done.returncode, "boards" in done.stdout) == (0, True)


def test_two_studies_of_one_thing_do_not_differ_and_the_json_says_so(called: Called, gpu_study: Path) -> None:
    """A study against itself: no difference, the failing experiment named as not measured."""
    done = called("compare", gpu_study, gpu_study, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["pairs"]) == 5
    assert {test["differs"] for pair in told["pairs"] for test in pair["tests"].values()} == {False, None}
    [failed] = [pair for pair in told["pairs"] if pair["label"] == "one that fails"]
    assert failed["tests"]["energy_per_output_token_j"]["reason"] == "not measured in A; not measured in B"


def test_tight_repeats_of_one_thing_are_equivalent_a_tenth_apart_are_not_and_scattered_ones_are_undecided() -> None:
    """The 90 % interval lies inside the margin, outside, or across; it does not matter which side comes first."""
    first = [0.1000, 0.1002, 0.0999]
    cases = {
        True: [0.1001, 0.1003, 0.1000],
        False: [1.1 * value for value in first],
        None: [0.09, 0.1, 0.11],
    }
    for verdict, second in cases.items():
        assert is_equivalent(difference(first, second), MARGIN) is verdict
        assert is_equivalent(difference(second, first), MARGIN) is verdict
        low, high = equivalence_interval(difference(first, second))
        least = 1 / (1 + MARGIN) - 1
        assert (True if least < low < high < MARGIN else False if high < least or low > MARGIN else None) is verdict


@pytest.mark.parametrize("sha256", ["a" * 64, "b" * 64])
def test_equal_prompts_are_no_difference_wherever_they_lie(sha256: str) -> None:
    """Their SHA-256 tells; their path is a place on one machine."""
    sides = [
        row("one", {"environment.dataset": f"{home}/p.jsonl", "environment.dataset_sha256": digest}, restarts=[1.0])
        for home, digest in (("/home/ann", "a" * 64), ("/home/bob", sha256))
    ]
    named = {difference.name for difference in compare(*([side] for side in sides)).differs_in}
    assert ("prompts" in named, "prompts' SHA-256" in named) == (2 * (sha256 != "a" * 64,))


@pytest.mark.parametrize("restarts", [2, 3, 5])
def test_what_lies_on_the_margin_passes_for_equivalent_in_at_most_one_of_twenty_cases(restarts: int) -> None:
    """The test's error rate, by simulation with a fixed seed: 2,000 pairs of repeats with 1 % spread."""
    draw, count = np.random.default_rng(1), 2_000
    sides = [np.exp(draw.normal(0, 0.01, (count, restarts))) for _ in range(2)]
    verdicts = [
        is_equivalent(difference(list(first), list((1 + MARGIN) * second)), MARGIN)
        for first, second in zip(*sides, strict=True)
    ]
    # Three standard deviations of the count above 5 %.
    assert verdicts.count(True) <= count * 0.05 + 30
    assert verdicts.count(False) <= count * 0.05 + 30


def test_a_repetition_is_judged_by_joules_where_the_first_has_them() -> None:
    """Speed must not stand in for joules that were not measured again."""
    first = row("one", restarts=[0.1, 0.1001, 0.0999])
    [pair] = compare([first], [row("one", restarts=[0.1, 0.1002, 0.0999])], margin=MARGIN).pairs
    assert (pair.repeated.quantity, pair.repeated.equivalent) == (PRIMARY, True)
    [pair] = compare([first], [row("one", {"energy": None})], margin=MARGIN).pairs
    assert (pair.repeated.quantity, pair.repeated.equivalent) == (PRIMARY, None)
    assert pair.repeated.reason == "not measured in B"
    assert compare([first], [first]).pairs[0].repeated.equivalent is None


def scored(
    name: str, *, version: str = "1", rendered: str = "a" * 64, score: float = 0.5, lost: str = ""
) -> StoredResult:
    """Return a result whose model was asked two tasks, of which `lost` has no score; others are of the second."""
    tasks = []
    for task, of_version, sha256, value in (("t", "1", "b" * 64, 0.5), ("u", version, rendered, score)):
        figures = AnswerFigures(name=task, items=50, score=value, score_error=0.0, output_tokens=1, thought_tokens=0)
        asked = {"version": of_version, "few_shot": 0, "rendered_sha256": sha256, "numbers": [*range(50)]}
        answers = {"scores": [value] * 50, "answers": ["a"] * 50}
        tasks.append(TaskFigures(**figures.model_dump() | asked | answers).model_dump(mode="json"))
    kept = [task for task in tasks if task["name"] != lost]
    failures = [f"{lost}, restart 1: it broke"] if lost else []
    quality = {"overall": None, "tasks": kept, "categories": [], "failures": failures}
    return row(name, {"quality": quality}, restarts=[1.0, 1.0001, 0.9999])


def test_a_score_that_was_not_measured_again_leaves_a_reproduction_undecided(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its questions failed here: equal joules alone reproduce half of the bundle; the line names the task and why."""
    found = compare([scored("x")], [scored("x", lost="u")], margin=MARGIN)
    assert found.quality_lines[1:] == ["x: the score is not compared: B has no score of u (u, restart 1: it broke)"]
    monkeypatch.setattr(exits, "ignore_interrupts", lambda: None)
    with pytest.raises(SystemExit) as ended:
        require_equivalent(found)
    assert ended.value.code == 10
    said = "undecided: 1 of 1 experiments, the first: x; B has no score of u (u, restart 1: it broke)"
    assert said in capsys.readouterr().err
    # A bundle without that score claims nothing of it.
    require_equivalent(compare([scored("x", lost="u")], [scored("x")], margin=MARGIN))


@pytest.mark.parametrize("changed", [{"version": "2"}, {"rendered": "c" * 64}])
def test_a_score_of_other_questions_is_not_compared(
    changed: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another gold answer, or another text of a question: one line, and a reproduction is undecided (exit code 10)."""
    found = compare([scored("x")], [scored("x")], margin=MARGIN)
    assert [line.partition(" over ")[0] for line in found.quality_lines] == [
        f"{found.pairs[0].label}: score +0.000 [-0.019, +0.019]"
    ]
    require_equivalent(found)
    found = compare([scored("x")], [scored("x", score=0.9, **changed)], margin=MARGIN)
    [line] = found.quality_lines
    assert line == f"{found.pairs[0].label}: the score is not compared: A and B were not asked the same in u"
    monkeypatch.setattr(exits, "ignore_interrupts", lambda: None)
    with pytest.raises(SystemExit) as ended:
        require_equivalent(found)
    assert ended.value.code == 10
    why = "A and B were not asked the same in u: ask as the bundle did"
    assert f"undecided: 1 of 1 experiments, the first: x; {why}" in capsys.readouterr().err
