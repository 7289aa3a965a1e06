"""When a backend is given up."""

from __future__ import annotations

from wattdock.execution.breaker import Breaker
from wattdock.records.failure import Failure


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
