"""Which experiments share a runner."""

from __future__ import annotations

from typing import Any

from wattdock.config.experiment import ExperimentConfig
from wattdock.plan import load_groups


def experiments(*settings: dict[str, Any]) -> list[ExperimentConfig]:
    return [ExperimentConfig.model_validate(one) for one in settings]


def test_experiments_that_differ_only_in_workload_share_a_runner() -> None:
    """The number of requests in flight travels with each pass; it is no reason to load again."""
    batches = experiments(*({"workload": {"batch_size": size}} for size in (1, 8, 32)))
    assert load_groups(batches) == ((0, 1, 2),)


def test_another_engine_argument_model_or_gpu_needs_another_runner() -> None:
    """Whatever the engine was loaded with cannot be changed under it."""
    different = experiments({}, {"pytorch": {"dtype": "float16"}}, {"model": "shape:tiny"}, {"gpus": [1]}, {})
    assert load_groups(different) == ((0,), (1,), (2,), (3,), (4,))


def test_isolation_by_experiment_shares_nothing() -> None:
    """Two equal experiments get two runners when that was asked for."""
    assert load_groups(experiments({"isolation": "experiment"}, {"isolation": "experiment"})) == ((0,), (1,))
