"""Lengths of prompts and answers: distributions, their bounds, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from seams.config import LengthSpec

COUNT = 20_000


def drawn(seed: int = 0, **settings: Any) -> Any:
    """Return `COUNT` draws of a distribution, in tokens."""
    return np.array(LengthSpec.model_validate(settings).draw(COUNT, np.random.default_rng(seed)))


@pytest.mark.parametrize("distribution", ["lognormal", "gamma"])
@pytest.mark.parametrize(("mean", "std"), [(512, 300), (40, 80)])
def test_mean_and_std_are_those_of_the_tokens_themselves(distribution: str, mean: int, std: int) -> None:
    """Not of their logarithms; bounds far away take nothing off. Zero tokens are redrawn, which few small means see."""
    tokens = drawn(distribution=distribution, mean=mean, std=std, max=10**6)
    if distribution == "lognormal" or mean > std:
        assert tokens.mean() == pytest.approx(mean, rel=0.05)
        assert tokens.std() == pytest.approx(std, rel=0.2 if std > mean else 0.05)
    assert tokens.min() >= 1


def test_draws_outside_the_bounds_are_drawn_again_not_moved_to_them() -> None:
    """Clipping would pile requests up at the ends."""
    tokens = drawn(distribution="lognormal", mean=512, std=300, min=100, max=900)
    assert (tokens.min() >= 100, tokens.max() <= 900) == (True, True)
    assert np.mean(tokens == 900) < 0.005
    assert np.mean(tokens == 100) < 0.005


def test_uniform_lengths_reach_both_bounds() -> None:
    """Every length from min to max is as likely; a plain number is the same with equal bounds."""
    tokens = drawn(distribution="uniform", min=3, max=6)
    assert np.bincount(tokens)[3:] / COUNT == pytest.approx([0.25] * 4, abs=0.02)
    assert LengthSpec.of(7).draw(3, np.random.default_rng(0)) == [7, 7, 7]


def test_equal_seeds_draw_equal_lengths() -> None:
    """The first draws are pinned: a seed means the same on every machine."""
    settings = {"distribution": "gamma", "mean": 512, "std": 300, "max": 4096}
    assert (drawn(1, **settings) == drawn(1, **settings)).all()
    assert (drawn(1, **settings) != drawn(2, **settings)).any()
    lognormal = LengthSpec(distribution="lognormal", mean=512, std=300, max=4096)
    assert lognormal.draw(4, np.random.Generator(np.random.PCG64(7))) == PINNED


PINNED = [442, 520, 381, 272]


def test_a_length_says_its_mean_within_the_bounds_and_its_range() -> None:
    """As a plan shows it; what is cut off moves the mean."""
    assert str(LengthSpec.of(512)) == "512"
    assert str(LengthSpec(distribution="uniform", min=10, max=20)) == "uniform 15 (10 to 20)"
    cut = LengthSpec(distribution="lognormal", mean=512, std=600, max=600)
    assert cut.mean_tokens == pytest.approx(drawn(**cut.model_dump()).mean(), rel=0.02)
    assert cut.mean_tokens < 350


@pytest.mark.parametrize(
    "settings",
    [
        {"distribution": "lognormal", "mean": 500, "std": 600, "min": 10, "max": 8000},
        {"distribution": "lognormal", "mean": 1.3, "std": 0.4, "max": 5},
        {"distribution": "gamma", "mean": 3, "std": 2, "max": 20},
        {"distribution": "gamma", "mean": 500, "std": 600, "min": 10, "max": 2**31 - 1},
        {"distribution": "lognormal", "mean": 1e5, "std": 2e5, "max": 2**31 - 1},
    ],
)
def test_the_mean_is_that_of_what_is_drawn(settings: dict[str, Any]) -> None:
    """Work that was sent is held against it: within four standard errors of two hundred thousand draws."""
    tokens = np.array(LengthSpec(**settings).draw(200_000, np.random.default_rng(1)), dtype=float)
    assert abs(LengthSpec(**settings).mean_tokens - tokens.mean()) < 4 * tokens.std() / 200_000**0.5
