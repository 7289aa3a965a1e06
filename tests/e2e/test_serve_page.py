"""The live page in a real browser: what it shows of a run, what can be chosen, and what becomes of it meanwhile."""

from __future__ import annotations

import re
import subprocess
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from axe_core_python.selenium import Axe
from command import REPO, SMALL, Command, on_gpus
from contract.runner_process import PYTORCH_PYTHON
from fake_nvml import FakeGpu, constant, uuid_of
from make.served import GPUS, served
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

if TYPE_CHECKING:
    from collections.abc import Callable

    from selenium.webdriver import Chrome

LONG = (*SMALL, "--gpus", "0", "--set", "fake.step_s=0.05", "--set", "warmup.passes=0", "--max-output-tokens", "20")
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
NARROW = {"width": 360, "height": 900, "deviceScaleFactor": 1, "mobile": False}
# Cells of results, and paragraphs, that a phone's window cuts off.
CUT_OFF = """
return [...document.querySelectorAll("#result-rows td, #result-rows th, p, article")]
    .filter((part) => part.offsetWidth && part.getBoundingClientRect().right > innerWidth)
    .map((part) => part.textContent)
"""
MARKUP = "<img src=x onerror=alert(1)>"


def text(browser: Chrome, place: str) -> str:
    """Return what stands in an element now; it may have been replaced while it was looked for."""
    return str(browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", place))


def until(browser: Chrome, check: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until `check` is true."""
    return WebDriverWait(browser, seconds).until(lambda _: check())


def test_a_run_is_shown_survives_the_server_and_is_stopped_by_the_page(browser: Chrome, wattdock: Command) -> None:
    """Figures, GPUs that can be chosen, a server that restarts in the middle, two viewers, a result to open."""
    env = on_gpus(wattdock, *GPUS, FakeGpu(uuid=uuid_of(4), name=MARKUP, profile=(constant(90),)))
    running = wattdock.start("run", *LONG, "--min-duration-s", "300", "--set", "exclusive=gpus", env=env, **QUIET)
    with served(wattdock, "--port", "0", env=env) as server:
        port = server.url.rpartition(":")[2]
        browser.get_log("browser")  # type: ignore[no-untyped-call]
        browser.get(server.url)
        # Before data comes, each part says so, and no table has a head without a body.
        assert "Reading results" in httpx.get(server.url, timeout=30).text
        assert not browser.find_element(By.ID, "results-table").is_displayed()
        until(browser, lambda: "J/token (provisional)" in text(browser, "#runs .figures"))
        until(browser, lambda: "leased by" in text(browser, "#gpu-rows > :first-child .who"))
        assert text(browser, "#gpu-rows > :first-child .watts").endswith(" of 700 W")
        # Progress and end are told once, at one pace, on the card and on its GPU.
        left = "about [0-9]+ (s|min) left, until about [0-9]{2}:[0-9]{2}"
        until(browser, lambda: re.search(left, text(browser, "#gpu-rows > :first-child .who")))
        assert len(re.findall(" left, until", text(browser, "#runs"))) == 1
        assert "9.0 GB of it are in use" in text(browser, "#gpu-rows > :nth-child(3) .who")
        # A name is text, whatever it holds.
        assert MARKUP in text(browser, "#gpu-rows > :nth-child(4) h3")
        assert browser.find_elements(By.CSS_SELECTOR, "#gpu-rows img") == []
        boxes = browser.find_elements(By.CSS_SELECTOR, "#choose input")
        assert [box.is_enabled() for box in boxes] == [False, True, False, True]
        assert "in use" in text(browser, "#choose label:nth-child(3)")
        # With the keyboard: one GPU less, then the sum of the others.
        first = browser.find_element(By.CSS_SELECTOR, "#gpu-rows input")
        first.send_keys(Keys.SPACE)
        until(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#legend span")) == 3)
        browser.find_element(By.CSS_SELECTOR, "input[value=each]").send_keys(Keys.ARROW_RIGHT)
        until(browser, lambda: text(browser, "#legend").startswith("━ sum 3"))
        found = Axe().run(browser)["violations"]
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == []
        with httpx.stream("GET", f"{server.url}/events", timeout=30) as other:
            assert next(other.iter_lines()) == "event: history"
    until(browser, lambda: "not connected" in text(browser, "#link"))
    assert running.poll() is None
    with served(wattdock, "--port", port, env=env) as server:
        until(browser, lambda: text(browser, "#link") == "live")
        browser.find_element(By.ID, "token").send_keys(server.token)
        browser.find_element(By.CSS_SELECTOR, "#runs button:last-child").click()
        until(browser, lambda: text(browser, "#stopped").startswith("stops now"))
        assert running.wait(60) == 130
        until(browser, lambda: not text(browser, "#runs"))
        until(browser, lambda: "interrupted" in text(browser, "#result-rows"))
        link = browser.find_element(By.CSS_SELECTOR, "#result-rows th a").get_attribute("href")
        assert httpx.get(str(link), timeout=60).status_code == 200
    said = [entry for entry in browser.get_log("browser") if "/events" not in entry["message"]]  # type: ignore[no-untyped-call]
    assert said == []


def test_results_are_filtered_and_an_order_that_cannot_begin_says_why(browser: Chrome, wattdock: Command) -> None:
    """On a narrow screen nothing is wider than it."""
    for batch_size in ("1", "2"):
        done = wattdock("run", *SMALL, "--batch-size", batch_size)
        assert done.returncode == 0, done.stderr
    with served(wattdock, "--port", "0") as server:
        browser.get(server.url)
        until(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#result-rows tr")) == 2)
        browser.find_element(By.ID, "filter").send_keys("batch 1")
        until(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#result-rows tr")) == 1)
        browser.find_element(By.ID, "filter").send_keys(Keys.BACKSPACE, Keys.BACKSPACE)
        until(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#result-rows tr")) == 2)
        browser.find_element(By.ID, "token").send_keys(server.token)
        model = browser.find_element(By.NAME, "model")
        model.clear()
        model.send_keys("shape:no-such-model")
        browser.find_element(By.CSS_SELECTOR, "#order [type=submit]").click()
        until(browser, lambda: "exit code 2" in text(browser, "#started"), 90)
        for theme in ("light", "dark"):
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", NARROW)
            try:
                browser.execute_script("document.getElementById('theme').value = arguments[0]", theme)
                browser.execute_script("document.getElementById('theme').dispatchEvent(new Event('change'))")
                time.sleep(0.3)
                assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
                assert browser.execute_script(CUT_OFF) == []
                assert [rule["id"] for rule in Axe().run(browser)["violations"]] == []
            finally:
                browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.skipif(not PYTORCH_PYTHON.exists(), reason=f"no PyTorch environment at {PYTORCH_PYTHON}")
def test_a_real_engine_is_started_from_the_page_and_its_result_opened_there(browser: Chrome, wattdock: Command) -> None:
    """With the environment that `make run` uses; the order has nothing but the page's own fields."""
    with served(wattdock, "--port", "0", env={"WATTDOCK_RUNNERS": str(REPO / "runners")}) as server:
        browser.get(server.url)
        until(browser, lambda: "pytorch" in text(browser, "[name=backend]"))
        browser.find_element(By.ID, "token").send_keys(server.token)
        for name, value in {"backend": "pytorch", "model": "shape:tiny-llama", "max_output_tokens": "8"}.items():
            browser.execute_script("document.querySelector(`[name=${arguments[0]}]`).value = arguments[1]", name, value)
        browser.find_element(By.CSS_SELECTOR, "#order [type=submit]").click()
        until(browser, lambda: "handed over" in text(browser, "#answer"))
        until(browser, lambda: text(browser, "#result-rows td:nth-child(3)"), 300)
        [result] = wattdock.results()
        assert (result["status"], result["environment"]["backend"]) == ("ok", "pytorch")
        assert result["performance"]["output_tokens"] > 0
        # The result is stored before the command ends.
        until(browser, lambda: "done" in text(browser, "#started"), 300)
        browser.find_element(By.CSS_SELECTOR, "#result-rows th a").click()
        until(browser, lambda: "shape:tiny-llama" in text(browser, "main"), 300)
