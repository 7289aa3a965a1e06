"""Reports of measured studies, opened and used in a real browser."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from report_rows import row, with_timeline
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from stored_results import store_golden

from wattdock.records import COUNTER
from wattdock.reports.html.page import write_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from command import Command
    from selenium.webdriver import Chrome

WATTDOCK = Path(sys.executable).with_name("wattdock")
DRAWN = """
return Object.fromEntries([...document.querySelectorAll(".chart")].map((place) => [
    place.dataset.chart || place.id, place.querySelectorAll(".scatterlayer .trace, .barlayer .point").length]))
"""
# An axis that names results needs no unit.
TITLES = """
return [...document.querySelectorAll(".chart")].map((place) => Object.entries(place.layout)
    .filter(([key, axis]) => /^[xy]axis/.test(key) && (axis.title || !axis.ticktext))
    .map(([, axis]) => axis.title?.text))
"""
LINES = 'return document.getElementById("timeline-chart").data.map((line) => line.name)'
STYLES = 'return document.getElementById("timeline-chart").data.map((line) => [line.line.color, line.line.dash])'
# What plotly.js made of them.
STROKES = """
return [...document.querySelectorAll("#timeline-chart .scatterlayer .trace path.js-line")]
    .map((line) => [line.style.stroke, line.style.strokeDasharray])
"""
GROUND = "return getComputedStyle(document.body).backgroundColor"
DARK, LIGHT = "rgb(20, 23, 27)", "rgb(255, 255, 255)"


def logged(browser: Chrome, log: str) -> list[dict[str, Any]]:
    """Return what was logged since the last call."""
    entries: list[dict[str, Any]] = browser.get_log(log)  # type: ignore[no-untyped-call]
    return entries


def opened(browser: Chrome, study: Command) -> Path:
    """Write the study's report with the real command, open it, and return its file."""
    done = study("report", "results", "-o", "report.html", timeout=300)
    assert done.returncode == 0, done.stderr
    file = study.folder / "report.html"
    visit(browser, file)
    return file


def visit(browser: Chrome, file: Path) -> None:
    """Open a page, with nothing left in the logs of the one before."""
    for log in ("browser", "performance"):
        logged(browser, log)
    browser.get(file.as_uri())


@contextmanager
def narrow(browser: Chrome) -> Iterator[None]:
    """Make the screen 400 px wide for a while."""
    browser.set_window_size(500, 900)
    try:
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        )
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.set_window_size(1280, 1000)


def assert_quiet(browser: Chrome, file: Path) -> None:
    """The page said nothing and asked for nothing but itself."""
    assert logged(browser, "browser") == []
    events: list[dict[str, Any]] = [json.loads(one["message"])["message"] for one in logged(browser, "performance")]
    asked = [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]
    assert [url.partition("#")[0] for url in asked] == [file.as_uri()]


@pytest.mark.slow
def test_every_chart_of_a_gpu_study_is_drawn_without_an_error_or_a_request(browser: Chrome, gpu_study: Command) -> None:
    """Intervals, Pareto, phases, GPUs, both scalings and the timeline, each axis with its unit."""
    file = opened(browser, gpu_study)
    drawn = browser.execute_script(DRAWN)
    assert set(drawn) == {"intervals", "pareto", "phases", "gpus", "scaling", "batch", "timeline-chart"}
    assert all(drawn.values()), drawn
    titles = browser.execute_script(TITLES)
    assert [len(axes) for axes in titles] == [1, 2, 1, 1, 3, 3, 3]
    assert all(
        any(unit in text for unit in ("J ", "tokens/s", "power, W", "seconds", "GPUs", "requests"))
        for axes in titles
        for text in axes
    )
    assert browser.find_element(By.CSS_SELECTOR, ".verdict").text == "None of the 5 results may be published."
    assert_quiet(browser, file)


@pytest.mark.slow
def test_gpus_are_shown_each_or_summed_and_runs_are_chosen_with_the_keyboard(
    browser: Chrome, gpu_study: Command
) -> None:
    """Arrow keys on real radio buttons and lists; both GPUs' 300 and 200 W add up to 500."""
    file = opened(browser, gpu_study)
    run = browser.find_element(By.ID, "run")
    two = next(one.text for one in Select(run).options if "used_gpus=2" in one.text)
    run.send_keys(two)
    assert len([name for name in browser.execute_script(LINES) if name.startswith("GPU ")]) == 2
    browser.find_element(By.CSS_SELECTOR, "input[name=gpus][value=each]").send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script(LINES)[0] == "sum over the GPUs used"
    power = browser.execute_script('return document.getElementById("timeline-chart").data[0].y.filter((one) => one)')
    assert sorted(power)[len(power) // 2] == pytest.approx(500, rel=0.02)
    assert len(browser.find_elements(By.CSS_SELECTOR, "#spans tr")) >= 3
    assert_quiet(browser, file)


@pytest.mark.slow
def test_paper_names_the_run_that_its_power_is_of(browser: Chrome, gpu_study: Command) -> None:
    """Lists and buttons are not printed; what they chose stands above the chart, and follows them."""
    opened(browser, gpu_study)
    caption, place = (browser.find_element(By.ID, name) for name in ("timeline-shown", "run"))
    run = Select(place)
    two = next(one.text for one in run.options if "used_gpus=2" in one.text)
    run.select_by_visible_text(two)
    assert caption.text == f"{two}, restart 1, GPUs each, warm-up and passes"
    Select(browser.find_element(By.ID, "restart")).select_by_visible_text("2")
    for choice in ("gpus][value=sum", "part][value=whole"):
        browser.find_element(By.CSS_SELECTOR, f"input[name={choice}]").click()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not place.is_displayed()
        assert caption.is_displayed()
        assert caption.text == f"{two}, restart 2, GPUs summed, the whole restart"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    one = next(one.text for one in run.options if "used_gpus=1" in one.text)
    run.select_by_visible_text(one)
    assert caption.text == f"{one}, restart 1, the whole restart"


def test_no_two_lines_over_time_look_alike_whether_used_or_not(browser: Chrome, tmp_path: Path) -> None:
    """One GPU used of eight and four of the host's counters; then all eight used."""
    uuids = [f"GPU-{at:08}-0000-0000-0000-000000000000" for at in range(8)]
    [host] = row("one").result.model_dump(mode="json")["environment"]["host_gpus"]
    gpus = [host | {"index": at, "uuid": uuid} for at, uuid in enumerate(uuids)]
    domains = [f"host_package-{at}{part}_j" for at in range(2) for part in ("", "-dram")]
    series = [*((uuid, COUNTER) for uuid in uuids), *((None, name) for name in domains)]
    values = {one: [at * 30_000.0 for at in range(20)] for one in series}
    (tmp_path / "stored").mkdir()
    for used in (1, 8):
        changes = {"environment.host_gpus": gpus, "environment.gpu_uuids": uuids[:used]}
        file = tmp_path / f"{used}.html"
        write_page([with_timeline(row("one", changes), tmp_path / "stored", values)], file, title="a title")
        visit(browser, file)
        browser.find_element(By.CSS_SELECTOR, "input[name=part][value=whole]").click()
        styles = browser.execute_script(STYLES)
        assert len({tuple(one) for one in styles}) == len(styles) == 12
        strokes = browser.execute_script(STROKES)
        assert len({tuple(one) for one in strokes}) == len(strokes) == 12
        assert_quiet(browser, file)


@pytest.mark.slow
def test_colours_follow_the_toggle_and_the_system(browser: Chrome, gpu_study: Command) -> None:
    """Charts take the theme with the page; paper is white whatever the screen was, and nothing on it is folded."""
    opened(browser, gpu_study)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    assert browser.execute_script(GROUND) == DARK
    browser.find_element(By.CSS_SELECTOR, "input[name=theme][value=light]").click()
    assert browser.execute_script(GROUND) == LIGHT
    browser.find_element(By.CSS_SELECTOR, "input[name=theme][value=light]").send_keys(Keys.ARROW_RIGHT)
    assert browser.execute_script(GROUND) == DARK
    ink = 'return document.querySelector("[data-chart=pareto]").layout.font.color'
    assert browser.execute_script(ink) == "#e6e9ed"
    folded = 'return document.querySelectorAll("#audit details:not([open])").length'
    browser.execute_script('dispatchEvent(new Event("beforeprint"))')
    assert browser.execute_script(ink) == "#1b1f24"
    assert browser.execute_script(folded) == 0
    browser.execute_script('dispatchEvent(new Event("afterprint"))')
    assert browser.execute_script(ink) == "#e6e9ed"
    assert browser.execute_script(folded) > 0
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.slow
def test_a_narrow_screen_scrolls_tables_and_not_the_page(browser: Chrome, gpu_study: Command) -> None:
    """400 px wide."""
    with narrow(browser):
        opened(browser, gpu_study)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 400


@pytest.mark.slow
def test_a_cpu_study_shows_throughput_and_says_why_there_are_no_joules(browser: Chrome, cpu_study: Command) -> None:
    """No chart of energy, and no zero in place of one."""
    file = opened(browser, cpu_study)
    drawn = browser.execute_script(DRAWN)
    assert set(drawn) == {"intervals", "batch", "timeline-chart"}
    assert all(drawn.values()), drawn
    summary = browser.find_element(By.ID, "summary").text
    assert "not measured" in summary
    assert "No joules: no NVIDIA driver" in summary
    assert browser.execute_script(LINES) == ["output tokens/s"]
    assert_quiet(browser, file)


@pytest.mark.slow
def test_the_report_of_a_real_h200_study(browser: Chrome, tmp_path: Path) -> None:
    """Two backends at two batch sizes, from recorded restarts: charts, toggles, widths, and the study's figures."""
    file = tmp_path / "report.html"
    cases = [f"h200-{backend}-{batch}" for backend in ("pytorch", "vllm") for batch in (32, 128)]
    store_golden(tmp_path / "results", *cases)
    subprocess.run([WATTDOCK, "report", tmp_path / "results", "-o", file], check=True, timeout=120)
    visit(browser, file)
    drawn = browser.execute_script(DRAWN)
    assert {"intervals", "pareto", "batch", "timeline-chart"} <= set(drawn)
    assert all(drawn.values()), drawn
    summary = browser.find_element(By.ID, "summary").text
    assert all(figure in summary for figure in ("0.2451", "0.1593", "0.1751", "0.1116"))
    power = browser.execute_script('return document.getElementById("timeline-chart").data[0].y.filter((one) => one)')
    assert 500 < max(power) < 1000
    for theme, ground in (("light", LIGHT), ("dark", DARK)):
        browser.find_element(By.CSS_SELECTOR, f"input[name=theme][value={theme}]").click()
        assert browser.execute_script(GROUND) == ground
    with narrow(browser):
        visit(browser, file)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
    assert_quiet(browser, file)


@pytest.mark.slow
def test_what_keeps_results_from_being_published_leads_to_its_figures(browser: Chrome, gpu_study: Command) -> None:
    """The link opens the check that it names."""
    opened(browser, gpu_study)
    browser.find_element(By.LINK_TEXT, "weights real (5)").click()
    check = browser.find_element(By.ID, "check-weights-real")
    assert check.get_attribute("open")
    assert "random(uniform" in check.text
