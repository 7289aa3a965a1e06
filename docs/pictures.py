"""Make the pictures of README and docs: from recordings, and of a report's page about RESULTS.

    python docs/pictures.py [RESULTS]

A prefill and its decode steps are drawn from docs/measurements/data/prefill.json; without RESULTS only they are. The
report and the live page, of four made-up GPUs, are opened in headless Chromium.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from itertools import pairwise
from math import sin
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import altair as alt
import uvicorn
from selenium import webdriver
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.support.ui import WebDriverWait

from wattdock.host import Gpu, GpuInventory, Link, leases
from wattdock.live import Feed, GpuSnapshot
from wattdock.live.server import LOCAL, Service, application
from wattdock.study import WatchedRun, events

if TYPE_CHECKING:
    from collections.abc import Iterator

PICTURES = Path(__file__).parent / "pictures"
DATA = Path(__file__).parent / "measurements" / "data"
WATTDOCK = Path(sys.executable).with_name("wattdock")
WIDTH_PX, HEIGHT_PX = 1200, 1320
SECTION = "pareto"
IS_DRAWN = 'return document.documentElement.dataset.drawn === "yes"'
LIMIT_S = 120
# The height of the live page, in pixels, once it has a run.
LIVE_PX = """
document.getElementById("host").textContent = "gpu-node-1";
return document.querySelector("#runs article") ? document.documentElement.getBoundingClientRect().height : 0
"""
PASS_S, LOAD_S, AT_S, TOKENS_PER_S = 420, 60, 156, 5_800


def main() -> None:
    """Write the pictures into docs/pictures."""
    parser = argparse.ArgumentParser(description="Make the pictures of README and of the methodology.")
    parser.add_argument("results", type=Path, nargs="?", help="a folder of results; a browser opens their report")
    results: Path | None = parser.parse_args().results
    PICTURES.mkdir(exist_ok=True)
    prefill_picture().save(PICTURES / "prefill.svg")
    if results:
        chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
        if chromium is None or driver is None:
            sys.exit("no browser here for the pages' pictures: on Debian apt-get install chromium chromium-driver")
        report_picture(results, PICTURES / "report.png", chromium=chromium, driver=driver)
        with served(made_up_feed(results)) as url:
            live_picture(url, PICTURES / "live.png", chromium=chromium, driver=driver)


def prefill_picture() -> alt.TopLevelMixin:
    """Return power by the driver's samples and by the counter's changes, over the steps of an engine, by kind."""
    recording = json.loads((DATA / "prefill.json").read_text(encoding="utf-8"))
    changes_ms, joules = zip(*recording["counter"], strict=True)
    # A line that steps back from each point: a sample is the mean of the time before its stamp.
    power = [
        {"ms": end_ms, "power, W": power_w, "by": "driver's samples, 20 ms"} for end_ms, power_w in recording["samples"]
    ]
    for now, then in pairwise(range(len(joules))):
        mean_w = (joules[then] - joules[now]) / (changes_ms[then] - changes_ms[now]) * 1e3
        power += [{"ms": changes_ms[at], "power, W": mean_w, "by": "energy counter, 100 ms"} for at in (now, then)]
    steps = [
        {"ms": start, "end": end, "step": "prefill" if prompt_tokens > 100 else "decode"}
        for start, end, prompt_tokens in recording["steps"]
    ]
    x = alt.X("ms:Q", title="ms from where the prefill begins", scale=alt.Scale(domain=[-200, 600], nice=False))
    shades = alt.Scale(domain=["prefill", "decode"], range=["#f0c27b", "#d9e4ee"])
    step = alt.Color("step:N", scale=shades, title="steps of the engine")
    watts = alt.Y("power, W:Q", scale=alt.Scale(zero=False))
    spans = alt.Chart(alt.InlineData(values=steps)).mark_rect(clip=True, stroke="white", strokeWidth=0.4)
    lines = alt.Chart(alt.InlineData(values=power)).mark_line(clip=True, interpolate="step-before", strokeWidth=1.8)
    picture = alt.layer(
        spans.encode(x=x, x2="end:Q", color=step),
        lines.encode(x=x, y=watts, stroke=alt.Stroke("by:N", title="power by")),
    )
    scaled: alt.TopLevelMixin = picture.resolve_scale(color="independent", stroke="independent").properties(
        width=640, height=260
    )
    return scaled


def browser_of(chromium: str, driver: str, *, height_px: int) -> webdriver.Chrome:
    """Return a browser with a window of this height."""
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH_PX},{height_px}"):
        options.add_argument(word)
    return webdriver.Chrome(options=options, service=Driver(driver))


def report_picture(results: Path, target: Path, *, chromium: str, driver: str) -> None:
    """Write a picture of what the page of `wattdock report` shows from SECTION on, as a reader's window would."""
    with tempfile.TemporaryDirectory() as name, browser_of(chromium, driver, height_px=HEIGHT_PX) as browser:
        page = Path(name) / "report.html"
        subprocess.run([WATTDOCK, "report", results, "--output", page], check=True, timeout=LIMIT_S)
        browser.get(page.as_uri())
        WebDriverWait(browser, LIMIT_S).until(lambda seen: seen.execute_script(IS_DRAWN))
        browser.execute_script(f"document.getElementById({SECTION!r}).scrollIntoView()")
        target.write_bytes(browser.get_screenshot_as_png())


def live_picture(url: str, target: Path, *, chromium: str, driver: str) -> None:
    """Write a picture of the live page."""
    with browser_of(chromium, driver, height_px=HEIGHT_PX) as browser:
        browser.get(url)
        height_px = WebDriverWait(browser, LIMIT_S).until(lambda seen: seen.execute_script(LIVE_PX))
        screen = {"width": WIDTH_PX, "height": int(height_px), "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.execute_script(LIVE_PX)
        target.write_bytes(browser.get_screenshot_as_png())


class MadeUp(NamedTuple):
    """A GPU as the live page is to show it: mean power and its swing in watts, memory in use, in GB."""

    power_w: float
    swing_w: float
    memory_gb: float
    temperature_c: float
    busy_percent: float


MADE_UP = (MadeUp(612, 21, 131.2, 63, 99), MadeUp(604, 24, 131.2, 61, 99), MadeUp(426, 34, 70, 52, 88))
FREE = MadeUp(76, 1, 0.4, 34, 0)


def made_up_feed(results: Path, *, experiment: str = "batch 128, 256 tokens out", gpu: str = "NVIDIA H200") -> Feed:
    """Return a feed of four GPUs, the first two of which measure this experiment; it looks at nothing."""
    feed, now_s = Feed(results), time.time()
    states = dict(zip([f"GPU-{number}" for number in range(4)], [*MADE_UP, FREE], strict=True))
    gpus = [
        Gpu(index=at, uuid=uuid, name=gpu, power_limit_w=700, vram_total_bytes=150_754_820_096)
        for at, uuid in enumerate(states)
    ]
    used = (gpus[0].uuid, gpus[1].uuid)
    holder = leases.Holder("ada", 4711, "wattdock", "2026-01-01T00:00:00+00:00")
    feed.view = GpuSnapshot(
        inventory=GpuInventory(tuple(gpus), links=tuple(_links(list(states)))),
        occupied={gpus[2].uuid: "70,000,000,000 bytes of it are in use by python (process 8112) of grace"},
        leases=dict.fromkeys(used, holder),
    )
    watts: dict[str, float | None] = {}
    for back_s in range(600, -1, -1):
        # Nothing is measured while a model is loaded.
        idle = AT_S < back_s < AT_S + LOAD_S
        watts = {
            uuid: 118 + at if idle and uuid in used else state.power_w + state.swing_w * sin((back_s + 40 * at) / 9)
            for at, (uuid, state) in enumerate(states.items())
        }
        feed.points.append((now_s - back_s, watts))
    feed.power_w = watts
    feed.readings = {
        uuid: {
            "power_w": watts[uuid],
            "memory_used_bytes": state.memory_gb * 1e9,
            "temperature_c": state.temperature_c,
            "busy_percent": state.busy_percent,
            "sm_clock_mhz": 1980,
        }
        for uuid, state in states.items()
    }
    feed.runs = [_run(experiment, used, watts, now_s)]
    feed.look = lambda: None  # type: ignore[method-assign]
    return feed


def _links(uuids: list[str]) -> Iterator[Link]:
    for at, uuid in enumerate(uuids):
        yield from (Link(a=uuid, b=other, nvlinks=18, path="NODE") for other in uuids[at + 1 :])


def _run(experiment: str, gpus: tuple[str, ...], watts: dict[str, float | None], now_s: float) -> WatchedRun:
    """Return a run in its second of three passes, AT_S seconds after the pass began."""
    run = WatchedRun(Path("20261129T071645-long-outputs-1"), pid=4711, user="ada", is_ours=True)
    began_s = now_s - AT_S
    before_s = began_s - LOAD_S - PASS_S
    told: list[tuple[float, events.Event]] = [
        (before_s, events.RestartStarted(experiment, 1, 3, 3, 3, "", gpus)),
        (before_s, events.PassStarted("pass 1/1")),
        (before_s + PASS_S, events.PassFinished("pass 1/1", PASS_S * TOKENS_PER_S, PASS_S, None)),
        (before_s + PASS_S, events.RestartStarted(experiment, 2, 3, 2, 3, "", gpus)),
        (began_s, events.PassStarted("pass 1/1", PASS_S)),
        *((began_s + at_s, events.TokensSeen("pass 1/1", at_s * TOKENS_PER_S, at_s, watts)) for at_s in (1, AT_S)),
    ]
    for at_s, event in told:
        run.state.on(event, at_s)
    return run


@contextmanager
def served(feed: Feed) -> Iterator[str]:
    """Yield the address of the live page of a feed."""
    service = Service(feed, LOCAL)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(application(service), log_level="error", timeout_graceful_shutdown=1))
        service.is_ending = lambda: server.should_exit
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


if __name__ == "__main__":
    main()
