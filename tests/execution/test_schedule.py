"""Which experiments share a runner, in which order, and when a backend is given up."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wattdock.config import ExperimentConfig, Study
from wattdock.execution.schedule import Breaker, load_groups, schedule
from wattdock.records.failure import Failure


def experiments(*settings: dict[str, Any]) -> list[ExperimentConfig]:
    return [ExperimentConfig.model_validate(one) for one in settings]


def test_experiments_that_differ_only_in_workload_share_a_runner() -> None:
    """The number of requests in flight travels with each pass; it is no reason to load again."""
    batches = experiments(*({"workload": {"batch_size": size}} for size in (1, 8, 32)))
    assert load_groups(batches) == ((0, 1, 2),)


def test_another_engine_argument_model_or_gpu_needs_another_runner() -> None:
    """Whatever the engine was loaded with cannot be changed under it."""
    different = experiments({}, {"pytorch": {"dtype": "float16"}}, {"model": "shape:tiny"}, {"gpus": [1]})
    assert load_groups(different) == ((0,), (1,), (2,), (3,))


def test_experiments_share_a_runner_wherever_they_stand() -> None:
    """A sweep writes points of one load far apart; loading is what costs."""
    apart = experiments({}, {"model": "shape:tiny"}, {"workload": {"batch_size": 8}})
    assert load_groups(apart) == ((0, 2), (1,))


def test_isolation_by_experiment_shares_nothing() -> None:
    """Two equal experiments get two runners when that was asked for."""
    assert load_groups(experiments({"isolation": "experiment"}, {"isolation": "experiment"})) == ((0,), (1,))


TWELVE = experiments(
    *({"model": model, "workload": {"batch_size": size}} for model in ("a/b", "a/c", "a/d") for size in (1, 2, 3, 4))
)


@given(st.permutations(TWELVE), st.integers(0, 99), st.integers(0, 3))
def test_the_order_depends_on_seed_and_restart_and_not_on_how_the_file_is_written(
    written: list[ExperimentConfig], seed: int, restart: int
) -> None:
    """Each restart serves every experiment once, group by group, in the same order for every way to write it."""
    ids = []
    for order in (TWELVE, written):
        study = Study("s", tuple(order), seed=seed)
        groups = load_groups(study.experiments)
        scheduled = schedule(study, groups, restart)
        assert sorted(map(sorted, scheduled)) == sorted(map(sorted, groups))
        ids.append([order[position].experiment_id for group in scheduled for position in group])
    assert ids[0] == ids[1]


def test_restarts_differ_in_their_order() -> None:
    """What drifts within a restart must not always fall on the same experiments."""
    study = Study("s", tuple(TWELVE))
    orders = {schedule(study, load_groups(study.experiments), restart) for restart in range(5)}
    assert len(orders) == 5


def test_the_written_order_is_kept_where_that_was_asked_for() -> None:
    """Some series only make sense from small to large."""
    study = Study("s", tuple(TWELVE), order="written")
    groups = load_groups(study.experiments)
    assert schedule(study, groups, 3) == groups == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))


def failure(kind: str = "RunnerError", stage: str = "load") -> Failure:
    return Failure(kind=kind, message="", stage=stage, exit_code=5)


def opened(*failures: Failure | None, limit: int | None = 3, measured: bool = False) -> bool:
    breaker = Breaker(limit)
    for one in failures:
        breaker.note("vllm", one, measured=measured)
    return breaker.reason("vllm") is not None


def test_the_same_failure_three_times_in_a_row_opens_it() -> None:
    """Kind and stage count; which pass of how many does not."""
    assert opened(failure(), failure(), failure())
    assert opened(failure(stage="pass 1/2"), failure(stage="pass 2/2"), failure(stage="pass 1/3"))
    assert not opened(failure(), failure())


def test_another_failure_or_a_success_in_between_starts_again() -> None:
    """Two different troubles are not one."""
    assert not opened(failure(), failure(), None, failure())
    assert not opened(failure(), failure("LaunchError"), failure())
    assert not opened(failure(), failure(stage="warm-up 1/1"), failure())


def test_attempts_that_measured_something_first_do_not_add_up() -> None:
    """A runner that serves five experiments and fails the sixth works."""
    assert not opened(*[failure()] * 9, measured=True)


def test_without_a_limit_it_never_opens() -> None:
    """Some want every row to be tried."""
    assert not opened(*[failure()] * 9, limit=None)


def test_one_backend_does_not_open_anothers() -> None:
    """PyTorch runs where vLLM is broken."""
    breaker = Breaker(1)
    breaker.note("vllm", failure(), measured=False)
    assert breaker.reason("vllm")
    assert breaker.reason("pytorch") is None
