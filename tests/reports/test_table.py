"""What a person reads of one result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from make.rows import reason, row

from wattdock.console.views import show
from wattdock.store import StoredResult

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

OFFERED = {
    "performance.requests": 40,
    "performance.offered_rate_per_s": 50.0,
    "performance.requests_per_s": 0.154,
    "performance.schedule_lag_share": 0.7,
    "performance.arrivals_due": 400,
}


def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str) -> str:
    checks = [{"name": "arrivals served", "status": status, "figure": ""}]
    result = row("a", {**OFFERED, "audit.checks": checks, "audit.reasons": [reason("one"), reason("two")]}).result
    show([StoredResult(tmp_path, result)])
    return " ".join(capsys.readouterr().out.split())


def test_an_open_loop_that_was_not_kept_up_with_is_called_saturated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the verdict of its check, with what it leaves out."""
    said = printed(tmp_path, capsys, "fail")
    assert "50 requests/s offered, 0.154 achieved: saturated, so that latencies grow with the pass; 70.0%" in said
    assert "only 40 of 400 arrivals were served, and latencies are of these" in said
    assert "saturated" not in printed(tmp_path, capsys, "pass")


def test_a_served_engine_s_client_and_own_times_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that tells no times has a dash."""
    serving = {"client_cpu_share": 0.472, "client_late_s": 0.0114, "server_ttft_s": 0.94, "server_itl_s": 0.018}
    untold = {**serving, "server_ttft_s": None, "server_itl_s": None}
    for figures, means in ((serving, "TTFT 940.0 ms, ITL 18.0 ms"), (untold, "–")):
        show([StoredResult(tmp_path, row("a", {"performance.serving": figures}).result)])
        said = " ".join(capsys.readouterr().out.split())
        assert f"served client 47% busy, reads 11.4 ms late (p99); means by the server's clock: {means}" in said


def test_other_programs_that_kept_the_cpus_busy_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else on the page tells why it was slow."""
    for status, said in (("fail", True), ("pass", False)):
        checks = [{"name": "CPU use by others", "status": status, "figure": "61% in the worst pass"}]
        show([StoredResult(tmp_path, row("a", {"audit.checks": checks, "audit.reasons": [reason("one")]}).result)])
        line = "disturbed other programs used the CPUs: 61% in the worst pass"
        assert (line in " ".join(capsys.readouterr().out.split())) is said


def test_goodput_names_its_limits_and_that_all_joules_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads the cost sees what it is of; where it is unknown, the reason stands there."""
    known = {"requests": 40, "share_met": 0.75, "requests_met_per_s": 1.5, "energy_per_request_met_j": 200.0}
    asked = {"config.slo": {"ttft_ms": 200, "e2e_ms": 5000}, "goodput": known | {"energy_per_output_token_met_j": 2.5}}
    show([StoredResult(tmp_path, row("a", asked).result)])
    said = " ".join(capsys.readouterr().out.split())
    assert "goodput 1.5 requests/s: 75.0% of 40 requests within TTFT 200.0 ms, E2E 5.00 s" in said
    assert "cost of goodput 200 J/request, 2.5 J/output token that met the limits, of all joules" in said
    show([StoredResult(tmp_path, row("a", asked | {"goodput": {"reason": "no request met it"}}).result)])
    assert "cost of goodput unknown: no request met it" in " ".join(capsys.readouterr().out.split())


def test_what_all_joules_are_divided_by_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Joules per input token are not what an input token costs, and are of whole passes."""
    show([StoredResult(tmp_path, row("a", {"energy.energy_per_input_token_j": 6.0}).result)])
    assert "J/request, 6 J/input token, – J/total token (whole passes)" in " ".join(capsys.readouterr().out.split())


def test_a_study_that_is_shown_as_a_table_has_its_verdict_in_three_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commonest reason first, with how many results have it; what helps first is in words."""
    every, one = reason("GPUs", "none"), reason("warm-up", "quick")
    show([row(f"{at}", {"audit.reasons": [one, every] if at == 2 else [every]}) for at in range(4)])
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert said[-3:] == [
        "publishable  0 of 4: GPUs, warm-up (1)",
        "GPUs: none",
        "all: wattdock show 20260101T000000-fake-0 --checks",
    ]


def test_restarts_and_the_checks_that_did_not_pass_are_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too few are shown as they are; a check's bare name reads as a success."""
    spread = {
        "quantity": "output_tokens_per_s",
        "value": 25.08,
        "per_pass": [],
        "per_restart": [6.6, 43.5],
        "standard_deviation_between_restarts": 26.0,
        "reason": "2 restarts: too few for an interval",
    }
    three = {"per_restart": [6.6, 43.5, 25.0], "ci95": {"low": 0.0, "high": 71.4}, "ci95_relative": 1.8}
    changes = {
        "statistics": spread,
        "audit.publishable": False,
        "audit.reasons": [reason("energy", "none"), reason("b", "c")],
    }
    show([StoredResult(tmp_path, row("a", changes).result)])
    said = " ".join(capsys.readouterr().out.split())
    assert "restarts 6.6 and 43.5 output tokens/s; 2 restarts: too few for an interval" in said
    assert f"publishableno:energy,benergy:noneall:wattdockshow{tmp_path}--checks" in said.replace(" ", "")
    show([StoredResult(tmp_path, row("a", {**changes, "statistics": spread | three}).result)])
    said = " ".join(capsys.readouterr().out.split())
    assert "95 % interval [0, 71.4] of 25.08 output tokens/s (3 restarts" in said
