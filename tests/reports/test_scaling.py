"""Speed-up, efficiency and the cheapest split, from results of known speed and energy."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, hypot
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from make.outcomes import known
from make.rows import split_document, split_result
from refused import raises
from seams.analysis import NORMAL95, Budget, Entry, Figure, Interval
from seams.reports import PRIMARY, Optimum, Setting, SplitPoint, optimum

from wattdock.analysis import ExperimentResult
from wattdock.clock import NS_PER_S
from wattdock.console.views import show
from wattdock.errors import ConfigError
from wattdock.reports import Scaling, compare, scale
from wattdock.reports.cells import DISTURBED
from wattdock.store import StoredResult

if TYPE_CHECKING:
    from collections.abc import Sequence

# 5 % of the work is serial, and restarts differ by 1 %.
SERIAL = 0.05
SPREAD = (0.99, 1.0, 1.01)
# The host's GPU under a lower power limit.
SLOWED = split_document({}, [1.0], None)["environment"]["host_gpus"][0] | {"power_limit_w": 400.0}


def speeds(gpus: int) -> list[float]:
    """Return tokens per second of three restarts by Amdahl's law."""
    return [10_000 * factor / (SERIAL + (1 - SERIAL) / gpus) for factor in SPREAD]


def tensor(gpus: int, *, power_w: float = 650.0, **options: Any) -> ExperimentResult:
    """Return a result of tensor parallelism; every GPU draws the same."""
    split = {"tensor_parallel_size": gpus} if gpus > 1 else {}
    return split_result(split, speeds(gpus), [power_w * gpus] * 3, **options)


def of_study(name: str, result: ExperimentResult, late_s: float = 0) -> ExperimentResult:
    """Return a result as a study of this name measured it, in turns with others unless it was late."""
    made = result.model_dump(mode="json", by_alias=True)
    for span in made["spans"]:
        span |= {end: span[end] + round(late_s * NS_PER_S) for end in ("start_ns", "end_ns")}
    own = {"study": {"study_id": name, "attempt": 1}, "experiment_id": str(result.config.name)}
    return ExperimentResult.model_validate(made | own)


def scaled(results: dict[str, ExperimentResult]) -> Scaling:
    return scale([StoredResult(Path(name), made) for name, made in results.items()])


def only(results: dict[str, ExperimentResult]) -> tuple[Setting, list[list[SplitPoint]]]:
    found = scaled(results)
    assert not found.left_out
    [setting] = found.settings
    return setting, list(setting.curves.values())


def test_one_size_alone_has_no_speed_up_and_no_efficiency() -> None:
    """Two GPUs beside no other number of GPUs are not "1.000 times as fast, at 100 %"."""
    _, [[alone]] = only({"two": tensor(2)})
    assert (alone.speed_up, alone.efficiency, alone.energy_ratio) == (None, None, None)


def test_speed_up_and_efficiency_are_relative_to_one_gpu() -> None:
    """Two GPUs with 5 % of serial work are 1 ÷ (0.05 + 0.475) times as fast, and cost the more joules per token."""
    setting, [[first, second]] = only({"one": tensor(1), "two": tensor(2)})
    assert list(setting.curves) == ["tensor"]
    assert first.speed_up == first.efficiency == Figure(1.0)
    assert second.speed_up is not None
    assert second.efficiency is not None
    assert second.speed_up.value == pytest.approx(1 / 0.525, rel=1e-4)
    assert second.efficiency.value == pytest.approx(1 / 1.05, rel=1e-4)
    assert second.energy_ratio is not None
    assert second.energy_ratio.value == pytest.approx(1.05, rel=1e-4)


def test_from_four_sizes_on_the_serial_share_of_either_law_is_told() -> None:
    """By Amdahl's law 5 % were put in; by Gustafson's these speeds mean another share, by hand 16.179 ÷ 59."""
    sizes = (1, 2, 4, 8)
    setting, _ = only({f"{gpus}": tensor(gpus) for gpus in sizes})
    ups = [gpus / (1 + SERIAL * (gpus - 1)) for gpus in sizes]
    grown = sum((n - up) * (n - 1) for n, up in zip(sizes, ups, strict=True)) / sum((n - 1) ** 2 for n in sizes)
    [line] = setting.serial_shares
    assert f"serial share {SERIAL:.1%} if the work is the same" in line
    assert f"{grown:.1%} if it grows" in line
    assert grown == pytest.approx(0.2742, abs=1e-4)
    setting, _ = only({f"{gpus}": tensor(gpus) for gpus in sizes[:3]})
    assert setting.serial_shares == []


def test_an_interrupted_result_is_told_to_be_resumed_where_that_can_be() -> None:
    """A bundle holds no study to go on with."""
    part = tensor(2).model_copy(update={"status": "interrupted"})
    folder, bundled = (StoredResult(Path("b"), part, bundle) for bundle in (None, Path("x.tar")))
    reasons = [scale([StoredResult(Path("a"), tensor(1)), left]).left_out["b"] for left in (folder, bundled)]
    assert reasons == ["interrupted, finish with `wattdock run … --resume`", "interrupted"]


def test_one_size_alone_has_its_figures_and_no_ratios(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to compare it with, and still something to see: 10,000 tokens/s at 650 W."""
    monkeypatch.delenv("COLUMNS", raising=False)
    show(scaled({"one": tensor(1)}))
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("one GPU"))
    assert all(figure in row for figure in ("10,000 [", "650", "0.065"))
    assert row.split().count("–") >= 3


def test_every_kind_of_split_is_a_curve_of_its_own_that_begins_with_one_gpu() -> None:
    """Tensor, pipeline, both, replicas and device_map do not mix."""
    splits: list[dict[str, int]] = [
        {},
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        {"data_parallel_size": 2},
        {"device_map": 2},
    ]
    made = {str(split): split_result(split, [100.0, 101.0], [600.0, 610.0]) for split in splits}
    setting, _ = only(made)
    assert {kind: [point.gpus for point in points] for kind, points in setting.curves.items()} == {
        "tensor": [1, 2],
        "pipeline": [1, 2],
        "tensor × pipeline": [1, 4],
        "data": [1, 2],
        "device_map": [1, 2],
    }


def test_what_was_measured_under_other_settings_is_no_point_of_the_curve() -> None:
    """Another batch size is a setting of its own, and the repeats of one setting are pooled."""
    many = {"a": tensor(1), "b": tensor(2), "again": tensor(2), "other": tensor(2, batch_size=8)}
    found = scaled(many).settings
    assert [[point.restarts for point in setting.points] for setting in found] == [[3, 6], [3]]
    assert [len(setting.curves) for setting in found] == [1, 1]


@pytest.mark.parametrize(
    ("changes", "points"),
    [
        ({"host_gpus": [SLOWED]}, [1, 1]),
        ({"variables": {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}}, [1, 1]),
        ({"dataset": "prompts.jsonl", "dataset_sha256": "e" * 64}, [1, 1]),
        ({"dataset": "synthetic", "dataset_sha256": "e" * 64}, [1]),
    ],
)
def test_another_power_limit_engine_variable_or_prompts_file_is_another_setting(
    changes: dict[str, Any], points: list[int]
) -> None:
    """Neither's mean would be of both; synthetic prompts of another seed are the same work."""
    first, other = (split_document({"tensor_parallel_size": 1}, [100.0, 101.0, 102.0], None) for _ in range(2))
    first["environment"] |= {"dataset": changes.get("dataset", "bundled"), "dataset_sha256": "d" * 64}
    other["environment"] |= first["environment"] | changes
    found = scaled({name: ExperimentResult.model_validate(made) for name, made in (("a", first), ("b", other))})
    assert [len(setting.points) for setting in found.settings] == points


def test_the_cheapest_split_is_named_with_whether_the_next_one_differs() -> None:
    """A hundredth more is no difference where restarts' ratios spread by seven; a fifth in each restart is."""
    watts = [700.0, 656.0, 612.0]
    near = {"one": tensor(1), "two": split_result({"pipeline_parallel_size": 2}, speeds(1), watts)}
    far = near | {"two": split_result({"pipeline_parallel_size": 2}, speeds(1), [800.0] * 3)}
    for results, differs in ((near, False), (far, True)):
        found, _ = only(results)
        best = optimum(found.points)
        assert best is not None
        assert best.point.split == "one GPU"
        assert best.differs is differs


def test_one_of_several_splits_is_not_told_apart_by_what_chance_makes_of_several() -> None:
    """A ratio with p = 0.05 at most parts it from the cheapest of two splits; of five, Holm asks for 0.05 ÷ 4."""
    off = np.array([0.005, 0.0082, 0.0115])
    kinds = ({"tensor_parallel_size": 2}, PP, DP, {"tensor_parallel_size": 4})
    results = {"dear": of_study("s", at_cost({}, (65 * (1 + off)).tolist()))}
    for number, (split, by) in enumerate(zip(kinds, (0, 0.001, 0.002, 0.003), strict=True)):
        costs = [65 * (1 + by * shift) for shift in (1.0, 1.2, 0.8)]
        results[str(number)] = of_study("s", at_cost(split, costs))
    best = cheapest(results)
    alone = cheapest({name: results[name] for name in ("dear", "0")})
    assert alone.differs
    assert "one GPU" in best.not_parted


def test_a_ratio_is_as_uncertain_as_both_figures_together() -> None:
    """Budgets of ± 3 and ± 4 %, and two rooms: ± 5.07 % of a ratio; 4 % more are no difference, 6 % are one."""
    setting, _ = only({"one": of_study("a", tensor(1)), "two": of_study("b", tensor(2))})
    for more, differs in ((1.04, False), (1.06, True)):
        figures = (Figure(1.0, Interval.around(1.0, 0.03)), Figure(more, Interval.around(more, 0.04)))
        best = optimum([replace(point, j_per_token=of) for point, of in zip(setting.points, figures, strict=True)])
        assert best is not None
        assert best.ratio is not None
        half = hypot(0.05, NORMAL95 * 2**0.5 * 0.003)
        assert best.ratio.interval == pytest.approx((more * exp(-half), more * exp(half)))
        assert best.differs is differs


def at_cost(split: dict[str, int], joules: Sequence[float]) -> ExperimentResult:
    """Return a result of 10,000 tokens/s whose restarts took so many millijoules a token."""
    return split_result(split, [10_000.0] * len(joules), [10 * cost for cost in joules])


PP, DP = {"pipeline_parallel_size": 2}, {"data_parallel_size": 2}
# A room that warms by a tenth within a study, and splits that differ by 3 %, each restart by 0.3 % more or less.
ROOM = (60.0, 62.0, 64.0, 66.0)
LESS = [room * off for room, off in zip(ROOM, (1.0, 1.003, 0.999, 1.001), strict=True)]
MORE = [room * off for room, off in zip(ROOM, (1.031, 1.029, 1.033, 1.027), strict=True)]


def cheapest(results: dict[str, ExperimentResult]) -> Optimum:
    [setting] = scaled(results).settings
    assert setting.fewest_joules
    return setting.fewest_joules


def test_splits_measured_in_turns_are_told_apart_in_pairs_where_their_room_hides_the_difference() -> None:
    """As `compare` tells them apart, by the same numbers; their own intervals do not part."""
    results = {"dp": of_study("s", at_cost(DP, LESS)), "pp": of_study("s", at_cost(PP, MORE))}
    best = cheapest(results)
    assert (best.point.split, best.differs, best.method) == ("DP=2", True, "paired t-test, 4 restarts")
    less, more = (StoredResult(Path(name), results[name]) for name in ("dp", "pp"))
    [pair] = compare([less], [more]).pairs
    test = pair.tests[PRIMARY]
    ratio, difference = known(best.ratio), known(test.difference)
    assert ratio.value == 1 + difference.relative == pytest.approx(1.0292, abs=1e-4)
    assert [end - 1 for end in known(ratio.interval)] == pytest.approx(difference.interval)
    assert "1.0292 [1.0229, 1.0356] times as much: they differ (paired t-test, 4 restarts)" in str(best)
    figures = [best.point.j_per_token, best.next_best and best.next_best.j_per_token]
    ends = [figure.interval for figure in figures if figure and figure.interval]
    assert ends[0].high > ends[1].low


def test_the_cheapest_is_no_dearer_by_any_ratio_and_all_that_do_not_part_from_it_are_named() -> None:
    """Sums whose dear restart weighs more contradict the pairs; a third split scatters by a third."""
    less = split_result(DP, [10_000.0, 10_000.0, 30_000.0], [600.0, 600.0, 1_950.0])
    more = split_result(PP, [10_000.0, 10_000.0, 10_000.0], [606.0, 606.0, 656.0])
    wide = at_cost({"tensor_parallel_size": 2}, [50.0, 90.0, 70.0])
    best = cheapest({name: of_study("s", made) for name, made in (("dp", less), ("pp", more), ("tp", wide))})
    assert (best.point.split, best.next_best and best.next_best.split) == ("PP=2", "DP=2")
    assert (best.method, best.differs) == ("independent intervals", False)
    assert best.ratio
    assert best.ratio.value == pytest.approx((600 + 600 + 1_950) / 50_000 / (606 + 606 + 656) * 30_000)
    assert best.not_parted.keys() == {"TP=2"}
    assert "; not shown to differ from the cheapest: TP=2 (1.09 [" in str(best)


def test_a_changed_figure_does_not_change_the_rank_of_its_restarts() -> None:
    """What pairs compare is what is ranked: the restarts of the budget."""
    made = of_study("s", at_cost(DP, LESS)).model_dump(mode="json", by_alias=True)
    made["budget"]["energy_per_unit_j"] = 0.3
    best = cheapest({"dp": ExperimentResult.model_validate(made), "pp": of_study("s", at_cost(PP, MORE))})
    assert (best.point.split, best.differs) == ("DP=2", True)


@pytest.mark.parametrize(
    ("others", "split"),
    [
        # Two studies, of which each had a room of its own.
        ({"pp": of_study("t", at_cost(PP, MORE))}, "PP=2"),
        # One more restart, after the room of all others.
        ({"pp": of_study("s", at_cost(PP, [*MORE, 70.0]))}, "PP=2"),
        # Tried again behind all restarts of the other.
        ({"pp": of_study("s", at_cost(PP, MORE), late_s=1e6)}, "PP=2"),
        # Two results of one split in the study: no restart has a place among those of the other.
        ({name: of_study("s", at_cost(PP, MORE[at : at + 2])) for at, name in ((0, "pp"), (2, "qq"))}, "PP=2"),
        # A curve's first point was measured in the same study, the cheapest was not.
        ({"pp": of_study("t", at_cost(PP, MORE)), "tp": of_study("s", at_cost({"tp_size": 2}, [90.0] * 4))}, "PP=2"),
    ],
)
def test_splits_that_were_not_measured_in_turns_make_no_pairs(others: dict[str, ExperimentResult], split: str) -> None:
    """Their intervals are taken as independent, and 3 % are no difference."""
    best = cheapest({"dp": of_study("s", at_cost(DP, LESS))} | others)
    assert (best.next_best and best.next_best.split, best.method) == (split, "independent intervals")
    assert best.differs is False
    assert str(best).endswith("they do not differ (independent intervals)")


def test_splits_in_two_sessions_each_are_compared_by_session() -> None:
    """As `compare` does: rooms are the units, not the restarts in them."""
    made = {f"dp {day}": of_study(day, at_cost(DP, [60.0 + 0.01 * at] * 3)) for at, day in enumerate("ab")}
    made |= {f"pp {day}": of_study(day, at_cost(PP, [66.0 + 0.01 * at] * 3)) for at, day in enumerate("cd")}
    best = cheapest(made)
    assert (best.method, best.differs) == ("Welch's t-test, 2 and 2 sessions", True)


def test_splits_of_other_studies_that_cost_the_same_are_seldom_told_apart_however_many_there_are() -> None:
    """Eight with a room of 0.3 % each; where p was 0 or 1, some parted from the cheapest in 80 of 100 worlds."""
    draw, parted, worlds = np.random.default_rng(5), 0, 100
    for _ in range(worlds):
        made = {}
        for number in range(8):
            split = {"tensor_parallel_size": 2 ** (number % 4), "pipeline_parallel_size": 2 ** (number // 4)}
            costs = 60 * np.exp(draw.normal(0, 0.003) + draw.normal(0, 0.002, 3))
            made[str(number)] = of_study(str(number), at_cost(split, costs.tolist()))
        best = cheapest(made)
        parted += best.differs or len(best.not_parted) < 6
    assert parted / worlds <= 0.1


@pytest.mark.parametrize(("freedom", "told"), [(60, True), (2, False)])
def test_a_split_of_another_study_is_told_apart_by_the_degrees_of_freedom_of_its_budget(
    freedom: float, *, told: bool
) -> None:
    """Seven cost 4 % more, by budgets of ± 1 % and rooms of 0.3 %, of which many restarts or three tell."""
    made = {}
    for number in range(8):
        split = {"tensor_parallel_size": 2 ** (number % 4), "pipeline_parallel_size": 2 ** (number // 4)}
        document = of_study(str(number), at_cost(split, [62.4 if number else 60.0] * 3)).model_dump(mode="json")
        joules = document["budget"]["energy_per_unit_j"]
        known_to = {"degrees_of_freedom": freedom, "expanded": 0.01, "interval": [joules / 1.01, joules * 1.01]}
        document["budget"] |= known_to
        made[str(number)] = ExperimentResult.model_validate(document)
    best = cheapest(made)
    assert best.differs
    assert len(best.not_parted) == (0 if told else 6)


def test_splits_in_turns_that_cost_the_same_are_seldom_told_apart() -> None:
    """In about 5 of 100 worlds, however far the room moves."""
    draw, differ, worlds = np.random.default_rng(76), 0, 300
    for _ in range(worlds):
        room = 60 * np.exp(np.cumsum(draw.normal(0, 0.05, 4)))
        made = {
            name: at_cost(split, (room * np.exp(draw.normal(0, 0.01, 4))).tolist())
            for name, split in (("dp", DP), ("pp", PP))
        }
        differ += bool(cheapest({name: of_study("s", result) for name, result in made.items()}).differs)
    assert 0.02 <= differ / worlds <= 0.08


def test_the_figures_beside_ratios_are_those_whose_ratios_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """All tokens ÷ all seconds, and too few restarts for an interval of either."""
    made = {
        "one": split_result({}, [50.0, 200.0], [600.0, 600.0]),
        "two": split_result({"tensor_parallel_size": 2}, [160.0, 160.0], [1200.0, 1200.0]),
    }
    show(scaled(made), as_json=True)
    shown = json.loads(capsys.readouterr().out)
    first, second = (point["tokens_per_s"] for point in shown["settings"][0]["points"])
    speed_up = shown["settings"][0]["points"][1]["speed_up"]
    assert speed_up["value"] == pytest.approx(second["value"] / first["value"])
    assert (first["interval"], speed_up["interval"]) == (None, None)


def test_the_share_of_time_that_a_command_marks_as_communication_stands_beside_its_size(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the spans that count, where these are named; else of the runs; not 0 where too many places are marked."""
    monkeypatch.setenv("COLUMNS", "300")
    spans = [("epoch", 120.0, 1.0), ("communication", 30.0, 0.25)]
    keys = ("name", "duration_s", "share_within")
    marked = [dict(zip(keys, each, strict=True)) | {"count": 3, "share": each[1] / 200} for each in spans]
    work = {"unit": "samples", "count": 100, "marked": marked}
    for within, share in (("epoch", 0.25), (None, 0.15)):
        made = split_document({}, speeds(1), [650.0] * 3)
        settings = {"backend": "measure", "measure": {"command": ["x"], "work": {"unit": "samples", "within": within}}}
        result = ExperimentResult.model_validate(made | {"config": settings, "work": work})
        [point] = only({"one": result})[0].points
        assert point.communication == pytest.approx(share)
        show(scaled({"one": result}), as_json=False)
        assert f"{share:.0%}" in capsys.readouterr().out
    work["marked"] = [part | {"duration_s": 0.0, "share": 0.0} for part in marked]
    result = ExperimentResult.model_validate(made | {"config": settings, "work": work})
    assert only({"one": result})[0].points[0].communication is None
    assert only({"one": tensor(1)})[0].points[0].communication is None


def test_a_split_that_others_disturbed_is_marked_and_medians_of_pooled_results_are_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two results of one split: one disturbed marks the point; their medians add up to none."""
    disturbed = split_document({}, speeds(1), [650.0] * 3)
    disturbed["audit"]["checks"] = [{"name": "CPU use by others", "status": "fail", "figure": "61% in the worst pass"}]
    alone = {"two": tensor(2), "one": tensor(1)}
    setting, _ = only(alone | {"again": ExperimentResult.model_validate(disturbed)})
    first, second = setting.points
    assert (first.disturbed, second.disturbed) == (True, False)
    assert (first.ttft_p50_s, first.tpot_p50_s) == (None, None)
    assert second.ttft_p50_s is not None
    show(scaled(alone | {"again": ExperimentResult.model_validate(disturbed)}), as_json=False)
    assert "one GPU †" in (shown := capsys.readouterr().out)
    assert DISTURBED in shown


@pytest.mark.parametrize("draw", [0.03, None])
def test_tokens_per_second_are_as_uncertain_as_the_list_that_all_restarts_send(draw: float | None) -> None:
    """As the result's own figure; unknown, there is no interval. Of other studies' splits, speed-ups take both lists.

    Of 500 simulated pairs of lists that make 3 % (standard deviation), restarts 0.2 %, 94 intervals of 100 held the
    figure, 9 without; of speed-ups 94, and 18 without.
    """
    sides = []
    for name, gpus in (("a", 1), ("b", 2)):
        made = of_study(name, tensor(gpus))
        told = made.performance and made.performance.model_copy(update={"draw_of_speed": draw})
        sides.append(made.model_copy(update={"performance": told}))
    _, [points] = only(dict(zip("ab", sides, strict=True)))
    own = [known(side.speed_figure) for side in sides]
    assert [point.tokens_per_s.interval for point in points] == [figure.interval for figure in own]
    speed_up = known(points[1].speed_up)
    if draw is None:
        assert own[0].interval == speed_up.interval is None
    else:
        assert np.log(known(speed_up.interval).high / speed_up.value) > 2**0.5 * NORMAL95 * draw


def test_joules_of_pooled_results_hold_what_their_restarts_do_not_show() -> None:
    """A room that moves by 2 %, beside restarts that scatter by nothing."""
    made = tensor(2)
    entries = [
        Entry(name=Budget.RESTARTS, standard_uncertainty=0.0, found=""),
        Entry(name=Budget.ROOM, standard_uncertainty=0.02, found=""),
    ]
    budget = known(made.budget).model_copy(update={"entries": entries, "per_restart": [0.13] * 3})
    pooled = made.model_copy(update={"budget": budget})
    setting, _ = only({"one": pooled, "again": pooled})
    figure = known(setting.points[0].j_per_token)
    assert known(figure.interval).high / figure.value == pytest.approx(exp(NORMAL95 * 0.02))


def test_a_model_too_large_for_one_gpu_is_compared_with_its_smallest_split() -> None:
    """Efficiency counts the GPUs that the first point has."""
    _, [curve] = only({"two": tensor(2), "four": tensor(4)})
    assert [point.gpus for point in curve] == [2, 4]
    assert curve[1].speed_up is not None
    assert curve[1].efficiency is not None
    assert curve[1].efficiency.value == pytest.approx(curve[1].speed_up.value / 2)


def test_a_split_over_two_nodes_is_a_point_of_its_own() -> None:
    """Two GPUs of one node and one of each of two, from results that else would be pooled."""
    other = {"name": "b:7407", "host_name": "b", "boot_id": "b", "gpu_uuids": [SLOWED["uuid"]]}
    over = tensor(2, power_w=700).model_dump(mode="json")
    over["environment"]["nodes"] = [other]
    [setting] = scaled({"one": tensor(1), "two": tensor(2), "nodes": ExperimentResult.model_validate(over)}).settings
    assert [point.split for point in setting.points] == ["one GPU", "TP=2", "TP=2 on 2 nodes"]
    assert [point.restarts for point in setting.points] == [3, 3, 3]


def test_what_failed_or_used_no_gpu_is_left_out_with_the_reason() -> None:
    """A failed row must not look like a slow one."""
    failed = split_document({"tensor_parallel_size": 2}, [1.0], [1.0]) | {"status": "failed"}
    on_cpu = split_document({}, [1.0], None)
    on_cpu["environment"] |= {"gpu_count": 0, "gpu_names": [], "gpu_uuids": []}
    made = {"failed": ExperimentResult.model_validate(failed), "cpu": ExperimentResult.model_validate(on_cpu)}
    made["silent"] = split_result({}, [100.0, 100.0], [600.0, 0.0])
    found = scaled(made | {"whole": tensor(1)})
    silent = "a restart's tokens or joules are 0 or less, and of such values there is no ratio"
    assert list(found.left_out.values()) == ["status failed", "no GPU was used", silent]
    with raises(ConfigError, "status failed"):
        scaled(made)
    half = [ExperimentResult.model_validate(failed | {"status": "interrupted"})] * 2
    with raises(ConfigError, "interrupted"):
        scaled(dict(zip("ab", half, strict=True)))


def test_without_joules_there_is_speed_and_no_cheapest_split() -> None:
    """Not measured is none, not zero."""
    found, [curve] = only(
        {str(n): split_result({"tensor_parallel_size": n} if n > 1 else {}, [100.0], None) for n in (1, 2)}
    )
    assert optimum(found.points) is None
    assert [point.energy_ratio for point in curve] == [None, None]
    assert all(point.j_per_token is None for point in found.points)
