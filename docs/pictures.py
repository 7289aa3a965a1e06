"""Make the pictures of README and docs: from recordings, and of a report's page about RESULTS.

    python docs/pictures.py [RESULTS]

A prefill and its decode steps are drawn from docs/measurements/data/prefill.json; without RESULTS only they are. The
page is opened in headless Chromium.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import altair as alt
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

PICTURES = Path(__file__).parent / "pictures"
DATA = Path(__file__).parent / "measurements" / "data"
WATTDOCK = Path(sys.executable).with_name("wattdock")
WIDTH_PX, HEIGHT_PX = 1200, 1320
SECTION = "pareto"
IS_DRAWN = 'return document.documentElement.dataset.drawn === "yes"'
LIMIT_S = 120


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
            sys.exit("no browser here for the report's picture: on Debian apt-get install chromium chromium-driver")
        report_picture(results, PICTURES / "report.png", chromium=chromium, driver=driver)


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


def report_picture(results: Path, target: Path, *, chromium: str, driver: str) -> None:
    """Write a picture of what the page of `wattdock report` shows from SECTION on, as a reader's window would."""
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH_PX},{HEIGHT_PX}"):
        options.add_argument(word)
    with tempfile.TemporaryDirectory() as name:
        page = Path(name) / "report.html"
        subprocess.run([WATTDOCK, "report", results, "--output", page], check=True, timeout=LIMIT_S)
        browser = webdriver.Chrome(options=options, service=Service(driver))
        try:
            browser.get(page.as_uri())
            WebDriverWait(browser, LIMIT_S).until(lambda seen: seen.execute_script(IS_DRAWN))
            browser.execute_script(f"document.getElementById({SECTION!r}).scrollIntoView()")
            target.write_bytes(browser.get_screenshot_as_png())
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
