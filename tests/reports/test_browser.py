"""Reports of measured studies, opened and used in a real browser."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from axe_core_python.selenium import Axe
from make.rows import row
from make.stored import rows
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from wattdock.reports import write_report
from wattdock.reports.charts import CHARTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

DRAWN = """
return Object.fromEntries([...document.querySelectorAll(".chart")].map((place) => [
    place.dataset.chart || place.id,
    place.querySelectorAll(".mark-symbol path, .mark-rect path, .mark-line path").length]))
"""
TITLES = """
return Object.fromEntries([...document.querySelectorAll(".chart")].map((place) => [
    place.dataset.chart || place.id,
    [...place.querySelectorAll(".role-axis-title text")].map((title) => title.textContent)]))
"""
LEGEND = """
return [...document.querySelectorAll("#timeline-chart .role-legend-label text")].map((label) => label.textContent)
"""
TEXTS_OF_LEGEND = """
return [...document.querySelectorAll("[data-chart=pareto] .role-legend-label tspan")].map((line) => line.textContent)
"""
TICKS = """
return [...document.querySelectorAll("#timeline-chart .role-axis-label text")].map((label) => label.textContent)
"""
# The ends of each span's name in the strip at the timeline's top.
NAMES_OF_SPANS = """
return [...document.querySelectorAll("#timeline-chart .role-mark.mark-text text")].filter((name) => name.textContent)
    .map((name) => [name.textContent, name.getBoundingClientRect().left, name.getBoundingClientRect().right])
"""
INK = 'return getComputedStyle(document.querySelector("[data-chart=intervals] .role-axis-title text")).fill'
GRID = 'return getComputedStyle(document.querySelector("[data-chart=intervals] .role-axis-grid line")).stroke'
IS_DRAWN = 'return document.documentElement.dataset.drawn === "yes"'
# Cells of the summary that a window of a phone cuts off.
CUT_OFF = """
return innerWidth > 360 ? [] : [...document.querySelectorAll("#summary td, #summary th[scope=row]")]
    .filter((cell) => cell.getBoundingClientRect().right > innerWidth).map((cell) => cell.textContent.trim())
"""
# Characters in each paragraph's lines, but its last: those before the last line ÷ the lines before it.
LINES = """
return [...document.querySelectorAll("p.quiet")].filter((text) => text.offsetHeight).map((text) => {
    const lines = text.offsetHeight / parseFloat(getComputedStyle(text).lineHeight);
    return lines < 2 ? 0 : Math.floor(text.textContent.trim().length / lines);
})
"""
# What a browser prints: whether charts were drawn anew before it lays the page out, and what is folded or cut off.
PAPER = """
const [done] = arguments, cut = (part) => part.getBoundingClientRect().right > document.body.clientWidth + 1;
dispatchEvent(new Event("beforeprint"));
setTimeout(() => done({
    late: document.documentElement.dataset.paper ?? "",
    folded: document.querySelectorAll("main details:not([open], #summary details, .chart details)").length,
    cut: [...document.querySelectorAll("table, p, .chart svg")].filter(cut).length,
    advice: document.querySelector(".on-screen").offsetWidth,
}), 0);
"""
# A sheet of A4 on its long side, less its margins, in pixels of CSS.
SHEET = {"width": 1032, "height": 700, "deviceScaleFactor": 1, "mobile": False}
# Charts that are wider than their place, or whose names leave less than a quarter of it to the figures.
CRAMPED = """
return [...document.querySelectorAll("[data-chart]")].filter((place) => {
    const [chart, figures] = ["svg", ".background"].map((part) => place.querySelector(part).getBoundingClientRect());
    return chart.width > place.clientWidth + 2 || figures.width < place.clientWidth / 4;
}).map((place) => place.dataset.chart)
"""
LONG_NAME = (
    "/data/projects/department-of-linguistics/checkpoints/llama-3.1-8b-instruct/finetuned-2026-10-01/run-17/step-123456"
)
GROUND = "return getComputedStyle(document.body).backgroundColor"
DARK, LIGHT = "rgb(20, 23, 27)", "rgb(255, 255, 255)"


def logged(browser: Chrome, log: str) -> list[dict[str, Any]]:
    """Return what was logged since the last call."""
    entries: list[dict[str, Any]] = browser.get_log(log)  # type: ignore[no-untyped-call]
    return entries


def opened(browser: Chrome, results: Path) -> Path:
    """Write a study's report, open it, and return its file."""
    file = results.parent / "report.html"
    if not file.exists():
        write_report(rows(results), file, title="a study")
    visit(browser, file)
    return file


def visit(browser: Chrome, file: Path) -> None:
    """Open a page, with nothing left in the logs of the one before."""
    for log in ("browser", "performance"):
        logged(browser, log)
    browser.get(file.as_uri())
    until_drawn(browser)


def until_drawn(browser: Chrome) -> None:
    """Wait for the page's charts; after a change they are drawn a tenth of a second later."""
    time.sleep(0.3)
    WebDriverWait(browser, 30).until(lambda seen: seen.execute_script(IS_DRAWN))


@contextmanager
def wide(browser: Chrome, pixels: int, theme: str = "light") -> Iterator[None]:
    """Make the screen so wide, and the system's theme this one, for a while."""
    screen = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    theme_feature = {"name": "prefers-color-scheme", "value": theme}
    browser.set_window_size(max(pixels, 500), 900)
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme_feature]})
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        browser.set_window_size(1280, 1000)


def assert_quiet(browser: Chrome, file: Path) -> None:
    """The page said nothing and asked for nothing but itself."""
    assert logged(browser, "browser") == []
    events: list[dict[str, Any]] = [json.loads(entry["message"])["message"] for entry in logged(browser, "performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [url.partition("#")[0] for url in asked] == [file.as_uri()]


def test_every_chart_of_a_gpu_study_is_drawn_without_an_error_or_a_request(browser: Chrome, gpu_study: Path) -> None:
    """Intervals, Pareto, both scalings and the timeline, each axis with its unit."""
    file = opened(browser, gpu_study)
    drawn = browser.execute_script(DRAWN)
    # It asked the model nothing.
    assert set(drawn) == {*(name for name, kind in CHARTS.items() if kind.on_page), "timeline-chart"} - {"frontier"}
    assert all(drawn.values()), drawn
    titles = browser.execute_script(TITLES)
    axes_of = {name: len(axes) for name, axes in titles.items()}
    known = {"intervals": 1, "pareto": 2, "scaling": 3, "batch": 3, "timeline-chart": 3}
    assert all(axes_of.values())
    assert axes_of.items() >= known.items()
    assert all(
        any(unit in text for unit in ("J ", "J/", "tokens/s", "power, W", "seconds", "GPUs", "requests", "time"))
        for axes in titles.values()
        for text in axes
    )
    verdict = browser.find_element(By.CSS_SELECTOR, ".verdict").text
    # The simulated machine has no commit.
    by = "Another version of wattdock analysed 5 of 5; --again does so anew."
    assert verdict == f"None of the 5 results may be published; 1 failed. {by}"
    assert_quiet(browser, file)


def test_restarts_are_selected_with_the_keyboard(browser: Chrome, gpu_study: Path) -> None:
    """Of a real list; on paper, where lists are not printed, the choice stands."""
    file = opened(browser, gpu_study)
    run = browser.find_element(By.ID, "run")
    two = next(option.text for option in Select(run).options if "used_gpus=2" in option.text)
    run.send_keys(two)
    until_drawn(browser)
    assert {"GPU 0", "GPU 1", "pass"} <= set(browser.execute_script(LEGEND))
    assert len(browser.find_elements(By.CSS_SELECTOR, "#spans tr")) >= 3
    assert browser.find_element(By.ID, "timeline-shown").get_attribute("textContent") == two
    # The legend is whole, and time begins at 0.
    assert "output tokens/s" in browser.execute_script(LEGEND)
    ticks = browser.execute_script(TICKS)
    assert float(ticks[0]) == 0
    assert "−" not in "".join(ticks)
    assert_quiet(browser, file)


def test_colours_follow_the_toggle_and_the_system(browser: Chrome, gpu_study: Path) -> None:
    """Charts take the theme with the page; nothing on paper is folded."""
    opened(browser, gpu_study)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    until_drawn(browser)
    assert browser.execute_script(GROUND) == DARK
    assert browser.execute_script(INK) == "rgb(230, 233, 237)"
    Select(browser.find_element(By.ID, "theme")).select_by_visible_text("light")
    until_drawn(browser)
    assert browser.execute_script(GROUND) == LIGHT
    assert browser.execute_script(INK) == "rgb(27, 31, 36)"
    Select(browser.find_element(By.ID, "theme")).select_by_visible_text("dark")
    assert browser.execute_script(GROUND) == DARK
    folded = 'return document.querySelectorAll("#audit details:not([open])").length'
    browser.execute_script('dispatchEvent(new Event("beforeprint"))')
    assert browser.execute_script(folded) == 0
    browser.execute_script('dispatchEvent(new Event("afterprint"))')
    assert browser.execute_script(folded) > 0
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize(("pixels", "names"), [(360, ["idle", "load"]), (1600, ["idle", "launch", "load"])])
def test_a_span_is_named_where_its_name_has_room(
    browser: Chrome, gpu_study: Path, pixels: int, names: list[str]
) -> None:
    """A launch of 2 of 15 s has none on a phone, where it ran into the load's name."""
    with wide(browser, pixels):
        opened(browser, gpu_study)
        run = Select(browser.find_element(By.ID, "run"))
        run.select_by_visible_text(next(text.text for text in run.options if text.text.startswith("one that fails")))

        def found() -> list[tuple[str, float, float]]:
            return sorted(browser.execute_script(NAMES_OF_SPANS), key=lambda name: float(name[1]))

        WebDriverWait(browser, 30).until(lambda _: [name for name, *_ in found()] == names)
        assert all(right <= left for (*_, right), (_, left, _) in pairwise(found()))


def test_on_paper_a_report_is_light_open_and_whole(browser: Chrome, gpu_study: Path) -> None:
    """Printed from a dark screen wider than the sheet; afterwards the screen is as it was."""
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    with wide(browser, 1600, "dark"):
        opened(browser, gpu_study)
        folded = len(browser.find_elements(By.CSS_SELECTOR, "main details:not([open])"))
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SHEET)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [dark]})
        assert browser.execute_async_script(PAPER) == {"late": "", "folded": 0, "cut": 0, "advice": 0}
        assert (browser.execute_script(GROUND), browser.execute_script(INK)) == (LIGHT, "rgb(0, 0, 0)")
        assert browser.execute_script(GRID) == "rgb(228, 232, 236)"
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.execute_script('dispatchEvent(new Event("afterprint"))')
        until_drawn(browser)
        assert len(browser.find_elements(By.CSS_SELECTOR, "main details:not([open])")) == folded


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("pixels", [360, 800, 1600])
def test_a_report_is_accessible_and_fits_a_phone_and_a_wide_screen(
    browser: Chrome, gpu_study: Path, pixels: int, theme: str
) -> None:
    """By axe-core's rules; tables scroll, the page does not."""
    with wide(browser, pixels, theme):
        opened(browser, gpu_study)
        browser.execute_script('for (const folded of document.querySelectorAll("details")) folded.open = true')
        found = Axe().run(browser, options={"resultTypes": ["violations"]})["violations"]
        assert browser.execute_script("return document.documentElement.scrollWidth") <= pixels
        assert browser.execute_script(CUT_OFF) == []
        assert max(browser.execute_script(LINES)) <= 75
    assert not {rule["id"]: [node["html"][:200] for node in rule["nodes"]] for rule in found}


def test_a_cpu_study_shows_throughput_and_says_why_there_are_no_joules(browser: Chrome, cpu_study: Path) -> None:
    """No chart of energy, and no zero in place of one."""
    file = opened(browser, cpu_study)
    drawn = browser.execute_script(DRAWN)
    assert set(drawn) == {"intervals", "batch", "timeline-chart"}
    assert all(drawn.values()), drawn
    summary = browser.find_element(By.ID, "summary").text
    assert browser.find_element(By.CSS_SELECTOR, "#timeline h2").text.startswith("Tokens")
    assert "not measured" in summary
    assert "no GPU" in summary
    assert "output tokens/s" in browser.execute_script(TITLES)["timeline-chart"]
    assert_quiet(browser, file)


def test_what_keeps_results_from_being_published_leads_to_its_figures(browser: Chrome, gpu_study: Path) -> None:
    """The link opens the check that it names."""
    opened(browser, gpu_study)
    browser.find_element(By.LINK_TEXT, "weights (4)").click()
    check = browser.find_element(By.ID, "check-weights")
    assert check.get_attribute("open")
    assert "random(uniform" in check.text


@pytest.mark.parametrize("pixels", [360, 800, 1600])
def test_long_names_leave_room_for_figures(browser: Chrome, tmp_path: Path, pixels: int) -> None:
    """A model's path, twelve settings that differ, the longest name of a GPU: wrapped, in charts and in tables."""
    results = []
    for at in range(3):
        settings = {f"a_setting_of_the_engine_{nth}": at * nth for nth in range(12)}
        named = {
            "config.fake": settings,
            "environment.gpu_names": ["NVIDIA RTX PRO 6000 Blackwell Workstation Edition"],
        }
        model = {
            "environment.model.name": LONG_NAME,
            "config.workload.batch_size": at + 1,
            "experiment_id": f"{at}" * 64,
        }
        results.append(row(f"{at}", {"config.name": "", **named, **model}, restarts=[1.0 + at, 1.1 + at, 1.2 + at]))
    write_report(results, tmp_path / "report.html", title=LONG_NAME)
    with wide(browser, pixels):
        visit(browser, tmp_path / "report.html")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= pixels
        assert browser.execute_script(CRAMPED) == []
        legend = browser.execute_script(TEXTS_OF_LEGEND)
        assert "".join(legend).replace(" ", "").count(LONG_NAME) >= 1
