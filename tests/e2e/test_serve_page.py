"""The live page in a real browser: what it shows of a run, and what becomes of it while the server is away."""

from __future__ import annotations

import re
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import httpx
from axe_core_python.selenium import Axe
from command import SMALL, Command, on_gpus
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
MARKUP = "<img src=x onerror=alert(1)>"


def text(browser: Chrome, place: str) -> str:
    """Return what stands in an element now; it may have been replaced while it was looked for."""
    return str(browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", place))


def until(browser: Chrome, check: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until `check` is true."""
    return WebDriverWait(browser, seconds).until(lambda _: check())


def test_a_run_is_shown_and_survives_the_server(browser: Chrome, wattdock: Command) -> None:
    """Figures, GPUs, a server that restarts in the middle, two viewers, the run's end."""
    env = on_gpus(wattdock, *GPUS, FakeGpu(uuid=uuid_of(4), name=MARKUP, profile=(constant(90),)))
    running = wattdock.start("run", *LONG, "--min-duration-s", "300", "--set", "exclusive=gpus", env=env, **QUIET)
    with served(wattdock, "--port", "0", env=env) as server:
        port = server.url.rpartition(":")[2]
        browser.get_log("browser")  # type: ignore[no-untyped-call]
        browser.get(server.url)
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
    with served(wattdock, "--port", port, env=env):
        until(browser, lambda: text(browser, "#link") == "live")
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 130
        until(browser, lambda: not text(browser, "#runs"))
    said = [entry for entry in browser.get_log("browser") if "/events" not in entry["message"]]  # type: ignore[no-untyped-call]
    assert said == []
