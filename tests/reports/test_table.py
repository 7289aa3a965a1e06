"""What a person reads of one result."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from make.rows import reason, row
from seams.console import terminal_rows
from seams.reports import page

from wattdock.analysis import ExperimentResult
from wattdock.console.views import show

if TYPE_CHECKING:
    import pytest

    from wattdock.store import StoredResult

OFFERED = {
    "performance.requests": 40,
    "performance.offered_rate_per_s": 50.0,
    "performance.requests_per_s": 0.154,
    "performance.schedule_lag_share": 0.7,
    "performance.arrivals_due": 400,
}


def checked(name: str, status: str, **changes: Any) -> StoredResult:
    """Return a result with one check."""
    checks = [{"name": name, "status": status, "figure": "61%"}]
    return row("a", {**changes, "audit.checks": checks, "audit.reasons": [reason("one"), reason("two")]})


def test_an_open_loop_that_was_not_kept_up_with_is_called_saturated() -> None:
    """By the verdict of its check, with what it leaves out."""
    for status, is_saturated in (("fail", True), ("pass", False)):
        arrivals = terminal_rows(checked("arrivals served", status, **OFFERED))["arrivals"]
        assert ("saturated" in arrivals) is is_saturated
        assert all(figure in arrivals for figure in ("50 requests/s", "0.154", "70.0%", "40 of 400"))


def test_a_served_engine_s_client_is_told() -> None:
    """How busy it was, and by how much it read late."""
    serving = {"client_cpu_share": 0.472, "client_late_s": 0.0114, "others_counted": True}
    served = terminal_rows(row("a", {"performance.serving": serving}))["served"]
    assert served == "client 47% busy, reads 11.4 ms late (p99)"


def test_other_programs_that_kept_the_cpus_busy_are_named() -> None:
    """Nothing else on the page tells why it was slow."""
    assert terminal_rows(checked("CPU use by others", "fail"))["disturbed"].endswith(": 61%")
    assert "disturbed" not in terminal_rows(checked("CPU use by others", "pass"))


def test_goodput_names_its_limits_and_that_all_joules_count() -> None:
    """Whoever reads the cost sees what it is of; where it is unknown, the reason stands there."""
    known = {"requests": 40, "share_met": 0.75, "requests_met_per_s": 1.5, "energy_per_request_met_j": 200.0}
    asked = {"config.slo": {"ttft_ms": 200, "e2e_ms": 5000}, "goodput": known | {"energy_per_output_token_met_j": 2.5}}
    rows = terminal_rows(row("a", asked))
    assert all(figure in rows["goodput"] for figure in ("1.5 requests/s", "75.0%", "TTFT 200.0 ms", "E2E 5.00 s"))
    assert all(figure in rows["cost of goodput"] for figure in ("200.0 J/request", "2.500 J/output token"))
    unknown = terminal_rows(row("a", asked | {"goodput": {"reason": "none met"}}))
    assert unknown["cost of goodput"].endswith(": none met")


def test_a_command_without_joules_per_unit_says_why_and_what_the_run_took() -> None:
    """By the reason of its windows, or since it counted nothing; on the page, too. Joules of the run are known."""
    command = {"command": ["x"], "work": {"unit": "samples", "within": "epochs"}}
    work = {"unit": "samples", "count": 0, "marked": []}
    made: dict[str, Any] = {"config": {"backend": "measure", "measure": command}, "work": work, "budget": None}
    made |= {"energy.mean_power_w": None, "energy.measured_per_output_token_j": None}
    said = "no span 'epochs' was marked, but epoch"
    none = {"window": "marked", "restart": 0, "pass": 0, "reason": said}
    for window, why in ((none, said), (none | {"reason": None}, "the command counted no samples")):
        stored = row("a", made | {"config.name": "a"})
        document = stored.result.model_dump(mode="json", by_alias=True)
        document["energy"]["windows"] |= {"headline": "marked", "passes": [window]}
        stored = replace(stored, result=ExperimentResult.model_validate(document))
        shown = terminal_rows(stored)
        assert shown["J/sample"] == f"unknown: {why}"
        assert re.match(r"[\d,.]+ J \[", shown["energy"])
        assert f"No joules: {why}" in html.unescape(page([stored], title="x", written=datetime.now(UTC)))


def test_figures_per_request_of_whole_passes_are_named_as_such() -> None:
    """Without a window the start, when all prompts come at once, is in them."""
    known = {"energy.energy_per_request_j": 6.0, "energy.windows": {"measured_per_output_token_j": {}, "passes": []}}
    whole, steady = (
        terminal_rows(row("a", known | {"energy.windows.headline": name})) for name in ("drained", "steady_state")
    )
    assert (whole["J/request"], steady["J/request"]) == ("6.000 (whole passes)", "6.000")
    assert whole["TTFT"] == f"{steady['TTFT']} (whole passes)"


def test_a_study_that_is_shown_as_a_table_has_its_verdict_in_three_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commonest reason first, with how many results have it; what helps first is in words."""
    every, one = reason("GPUs", "none"), reason("warm-up", "quick")
    show([row(f"{at}", {"audit.reasons": [one, every] if at == 0 else [every]}) for at in range(4)])
    # The last one is longer than a narrow terminal.
    said = " ".join(capsys.readouterr().out.split())
    names = " ".join(f"20260101T000000-fake-{at}" for at in range(4))
    assert said.endswith(
        f" publishable 0 of 4; failed: GPUs, warm-up (1) GPUs: none all: wattdock show {names} --checks"
    )


def test_restarts_and_the_checks_that_did_not_pass_are_in_words() -> None:
    """Too few are shown as they are; a check's bare name reads as a success."""
    energy = row("a").result.energy
    assert energy
    one = energy.passes[0].model_dump(mode="json", by_alias=True) | {"duration_s": 10.0}
    unknown = reason("weights") | {"status": "unknown"}
    passes = [one | {"restart": at, "output_tokens": tokens} for at, tokens in enumerate((66, 435, 250))]
    changes = {"budget": None, "audit.publishable": False, "audit.reasons": [reason("energy"), reason("b"), unknown]}
    changes["energy.passes"] = passes[:2]
    rows = terminal_rows(row("a", changes))
    assert rows["restarts"].startswith(
        "6.600 and 43.50 output tokens/s; 2 are too few for an interval, 3 are the least"
    )
    assert rows["publishable"] == "no; failed: energy, b; not decided: weights"
    interval = terminal_rows(row("a", {**changes, "energy.passes": passes}))["restarts"]
    assert interval.startswith("6.600 and 43.50 and 25.00 output tokens/s, 95 % [")


def test_the_figure_of_the_declared_work_is_shown_with_what_makes_it_uncertain() -> None:
    """Each entry with its size, its share and its correction; what no repetition shows stands apart."""
    made = row("a", {"budget.entries.1.correction": -0.0196, "budget.entries.1.found": "shorter prompts"})
    rows = terminal_rows(made)
    figure = "0.1676 of the declared work (2 restarts: too few for an interval, 3 are the least"
    assert rows["J/output token"].startswith(figure)
    assert rows["mix of work"] == "0.00%, 0%, corrected by -1.96%: shorter prompts"
    # 0 s of lead-in; the shares of 1 % and 2.49 % in the sum of squares of all entries, 3.60 %.
    assert rows["first seconds"] == "1.00%, 8%: 0 s of work before the first window"
    assert rows["timing"].startswith("2.49%, 48%: ")
    assert rows["not in it: board"].startswith("1.2% (1 board")
    assert rows["not in it: sensor gain"].startswith("unknown (")
    known = terminal_rows(row("a", restarts=[1.0, 1.1, 1.2]))
    # 4.303 × 0.09119 ÷ √3, the standard deviation being that of the logarithms.
    assert known["J/output token"] == "1.100 ± 22.65% of the declared work (95 %, 2 degrees of freedom)"
    assert "J/output token" not in terminal_rows(row("a", {"budget": None}))
