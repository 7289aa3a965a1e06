"""J/token is the budget's, restart by restart, wherever it is shown, compared or pooled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from make.outcomes import known
from make.rows import restarts_budget, row
from seams.analysis import SPEED
from seams.reports import PRIMARY

from wattdock.reports import compare, pools

if TYPE_CHECKING:
    from wattdock.store import StoredResult

AS_MEASURED = [2.0, 3.0, 4.0]
CORRECTED = [1.00, 1.01, 1.03]


def corrected(
    name: str, values: list[float], tokens: tuple[int, ...] = (1000, 1000, 1000), **changes: Any
) -> StoredResult:
    """Return a result whose restarts were measured at 2, 3 and 4 J/token, and corrected to these values."""
    own = {key.replace("__", "."): value for key, value in changes.items()}
    own |= {f"energy.passes.{at}.output_tokens": count for at, count in enumerate(tokens)}
    budget = restarts_budget(values, tokens).model_dump(mode="json")
    return row(name, {"budget": budget, "status": "ok", **own}, restarts=AS_MEASURED)


def test_restarts_weigh_as_many_tokens_as_they_have() -> None:
    """1.00, 1.01 and 1.03 J/token with 1000, 1000 and 2000 tokens: 4.07 J by 4 tokens; the budget's own figure."""
    result = corrected("a", CORRECTED, (1000, 1000, 2000)).result
    restarts = result.restarts(PRIMARY)
    assert restarts.values == pytest.approx(CORRECTED)
    assert restarts.value == pytest.approx(4.07 / 4)
    assert restarts.value == pytest.approx(known(result.energy_figure).value)
    assert result.restarts(SPEED).bottoms == pytest.approx([each.duration_s for each in known(result.energy).passes])


def test_arms_are_compared_as_corrected_and_in_pairs() -> None:
    """2 % more in every restart of a study; as measured, both arms are the same."""
    study = {"study_id": "s", "attempt": 1}
    arms = [corrected(name, values, study=study) for name, values in (("a", CORRECTED), ("b", [1.02, 1.0302, 1.0506]))]
    [pair] = compare(arms[:1], arms[1:]).pairs
    test = pair.tests[PRIMARY]
    assert (test.a, test.b) == pytest.approx([sum(CORRECTED) / 3, 1.02 * sum(CORRECTED) / 3])
    assert test.method == "paired t-test, 3 restarts"
    assert test.relative == pytest.approx(0.02)


def test_pools_of_boards_hold_corrected_figures() -> None:
    """Boards of 1.0133 and 1.0640 J/token."""
    boards = [
        corrected("a", [share * value for value in CORRECTED], environment__gpu_uuids=[f"GPU-{share}"])
        for share in (1.0, 1.05)
    ]
    [pool] = pools(boards).values()
    assert pool.boards.values == pytest.approx([sum(CORRECTED) / 3, 1.05 * sum(CORRECTED) / 3])
