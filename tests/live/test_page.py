"""The live page in a real browser, over feeds whose state is known: every moment of a run, and states without news."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import fake_nvml
import httpx
import pytest
from axe_core_python.selenium import Axe
from make.machine import VirtualMachine, experiment, study
from pictures import made_up_feed, served
from seams.live import server
from selenium.webdriver.support.ui import WebDriverWait

from wattdock.host import GpuInventory
from wattdock.live import Feed, GpuSnapshot
from wattdock.study import RunState, events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

# Keeps each text that the page said about runs from its first moment on, while it could be seen.
LISTEN = """
window.said = [];
new MutationObserver(() => {
    const line = document.getElementById("no-run");
    if (line && !line.hidden && line.textContent !== said[said.length - 1]) said.push(line.textContent);
}).observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
"""
SEEN = "return [window.said, document.querySelector('#runs .doing')?.textContent ?? '']"
LOOKING, NONE = "Looking for runs …", "No run is under way in "
# What a window cuts off, at its right or, of a card of a GPU, at its foot.
CUT_OFF = """
return [...document.querySelectorAll("main p, article, #link")]
    .filter((part) => part.offsetWidth && part.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map((part) => part.textContent)
"""
LONG_NAME = (
    "/data/projects/department-of-linguistics/checkpoints/llama-3.1-8b/finetuned-2026-10-01/step-123456 "
    + " ".join(f"a_setting_of_the_engine_{number}=16" for number in range(12))
)
LONG_GPU = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"


def until(browser: Chrome, script: str) -> Any:
    """Wait until a script's value is true, and return it."""
    return WebDriverWait(browser, 30).until(lambda seen: seen.execute_script(script))


@contextmanager
def screen(browser: Chrome, width: int, theme: str, media: str = "") -> Iterator[None]:
    """Make the screen so wide, and the system's theme this one, for a while."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    theme_feature = {"name": "prefers-color-scheme", "value": theme}
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [theme_feature]})
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_a_page_loaded_at_any_moment_of_a_run_shows_that_run_first(
    browser: Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, launch, load, idle, lead-in, pass, between restarts, after: never "no run" while there is one."""
    monkeypatch.setattr(server, "UPDATE_S", 0.2)
    monkeypatch.setattr(server, "PASS_UPDATE_S", 2.0)
    machine = VirtualMachine(tmp_path, {fake_nvml.uuid_of(1): lambda _: 300.0})
    feed, state, shown = Feed(machine.results), RunState(), list[str]()
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": LISTEN})

    def loaded(expected: Callable[[], bool]) -> list[Any]:
        """Load the page once the server knows of this moment, and return what it said and shows."""
        begin_s = time.monotonic()
        while not expected() and time.monotonic() - begin_s < 20:
            time.sleep(0.05)
        # Until the look that found it is told.
        time.sleep(0.3)
        browser.get(url)
        until(browser, "return document.getElementById('link').textContent === 'live' && window.said.length")
        until(browser, f"return document.querySelector('#runs article') || said[said.length - 1].startsWith('{NONE}')")
        return list(browser.execute_script(SEEN))

    def at(event: events.Event) -> None:
        before = state.doing
        state.on(event, time.time())
        if isinstance(event, events.TokensSeen) or state.doing == before or state.doing in shown:
            return
        said, doing = loaded(lambda: [run.state.doing for run in feed.runs] == [state.doing])
        assert said in ([LOOKING], []), state.doing
        assert doing.startswith(state.doing)
        shown.append(state.doing)

    lead_in = {"profile": "lead-in", "lead_in_s": 5, "lead_in_lifetimes": 0, "window_lifetimes": 0}
    measured = study(experiment("one", warmup=lead_in, repeats={"restarts": 2, "passes": 1}, idle={"duration_s": 2}))
    try:
        with served(feed) as url:
            assert loaded(lambda: bool(feed.view.at_utc))[0][-1] == f"{NONE}{machine.results}."
            machine.run(measured, on=at)
            assert loaded(lambda: not feed.runs)[0][-1] == f"{NONE}{machine.results}."
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    assert {"begins", "pass 1/1", "pass 1/1 measured", "result stored"} <= set(shown)
    assert len(shown) >= 6


def test_every_viewer_gets_the_latest_state_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the next look, which is seconds away while a pass is measured; here it never comes."""
    for name in ("UPDATE_S", "PASS_UPDATE_S"):
        monkeypatch.setattr(server, name, 1_000.0)
    with served(made_up_feed(tmp_path)) as url:
        for _ in range(2):
            with httpx.stream("GET", f"{url}events", timeout=10) as stream:
                told = (line for line in stream.iter_lines() if line.startswith("event: "))
                assert [next(told), next(told)] == ["event: history", "event: now"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800, 1600])
def test_long_names_are_whole_once_and_cut_nothing_off(browser: Chrome, tmp_path: Path, width: int, theme: str) -> None:
    """A GPU's tile cuts the experiment's name, not whose it is until when; the run's card has all of it."""
    feed = made_up_feed(tmp_path, experiment=LONG_NAME, gpu=LONG_GPU)
    with served(feed) as url, screen(browser, width, theme):
        browser.get(url)
        until(browser, "return document.querySelector('#runs article')")
        assert browser.execute_script(CUT_OFF) == []
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script("return document.querySelector('#runs h3').textContent") == LONG_NAME
        who = browser.execute_script("return document.querySelector('.who').textContent")
        assert who.startswith("leased by ada; about ")
        assert browser.execute_script("return document.querySelector('.who').offsetHeight") < 150
        assert [rule["id"] for rule in Axe().run(browser)["violations"]] == []


def test_a_page_whose_server_stopped_says_of_when_it_is(browser: Chrome, tmp_path: Path) -> None:
    """Wherever the reader has scrolled to, readably; what was known stays."""
    with served(made_up_feed(tmp_path)) as url:
        browser.get(url)
        until(browser, "return document.querySelector('#runs article')")
    link = until(
        browser, "return document.body.classList.contains('stale') && document.getElementById('link').textContent"
    )
    assert "not connected; trying again; shown is as of " in link
    browser.execute_script("scrollTo(0, 1e6)")
    place = browser.execute_script("return document.getElementById('link').getBoundingClientRect()")
    assert 0 <= place["top"] < place["bottom"] <= browser.execute_script("return innerHeight")
    assert browser.execute_script("return document.querySelectorAll('#runs article').length") == 1
    assert [rule["id"] for rule in Axe().run(browser)["violations"]] == []


def test_a_machine_without_gpus_and_runs_says_each(browser: Chrome, tmp_path: Path) -> None:
    """With the reason; no chart without lines."""
    feed = made_up_feed(tmp_path)
    feed.view = GpuSnapshot(GpuInventory((), reason="no NVIDIA driver: libnvidia-ml.so.1 was not found"))
    feed.runs, feed.readings, feed.power_w = [], {}, {}
    feed.points.clear()
    with served(feed) as url:
        browser.get(url)
        until(browser, f"return document.getElementById('no-run').textContent.startsWith('{NONE}')")
        text = browser.execute_script("return document.querySelector('main').innerText")
    assert "no NVIDIA driver: libnvidia-ml.so.1 was not found" in text
    assert "No GPU can be seen here." in text
    assert "Power over" not in text


def test_on_paper_the_live_page_is_light_and_says_of_when_it_is(browser: Chrome, tmp_path: Path) -> None:
    """Without what chooses lines."""
    with served(made_up_feed(tmp_path)) as url, screen(browser, 1032, "dark", "print"):
        browser.get(url)
        until(browser, "return document.querySelector('#runs article')")
        browser.execute_script("dispatchEvent(new Event('beforeprint'))")
        style = "return getComputedStyle(document.body).backgroundColor + getComputedStyle(document.body).color"
        assert browser.execute_script(style) == "rgb(255, 255, 255)rgb(0, 0, 0)"
        text = browser.execute_script("return document.body.innerText")
        assert f"as of {time.strftime('%Y-%m-%d')}" in text
        assert "only GPUs in use" not in text
        browser.execute_script("dispatchEvent(new Event('afterprint'))")
        assert browser.execute_script("return document.documentElement.dataset.theme") == ""
