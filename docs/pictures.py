"""Make the pictures that README shows, from stored results: a terminal as it looks, and the page that `report` writes.

    python docs/pictures.py RESULTS

Terminal output is that of the real command on a pseudo-terminal; the page is opened in headless Chromium.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

PICTURES = Path(__file__).parent / "pictures"
WATTDOCK = Path(sys.executable).with_name("wattdock")
COLUMNS, LINES = 112, 60
WIDTH_PX, HEIGHT_PX = 1200, 1320
SECTION = "pareto"
IS_DRAWN = 'return document.documentElement.dataset.drawn === "yes"'
# Rich's picture asks a server for its font; readers' own monospace does.
FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
LIMIT_S = 120
QUERY = (
    "SELECT backend, batch_size AS batch, round(output_tokens_per_s) AS tokens_per_s, "
    "round(energy_per_output_token_j, 4) AS j_per_token FROM results ORDER BY ALL"
)


def main() -> None:
    """Write both pictures into docs/pictures."""
    parser = argparse.ArgumentParser(description="Make the pictures that README shows, from stored results.")
    parser.add_argument("results", type=Path, help="a folder of results")
    given = parser.parse_args()
    results: Path = given.results
    PICTURES.mkdir(exist_ok=True)
    latest = max(results.glob("[!.]*/result.json")).parent
    commands = [["results", "query", QUERY], ["show", f"results/{latest.name}"]]
    with tempfile.TemporaryDirectory() as name:
        # Where it lies on this machine is nobody's business.
        (Path(name) / "results").symlink_to(results.resolve())
        shown = "\n".join(f"$ wattdock {shlex.join(one)}\n{on_terminal(one, Path(name))}" for one in commands)
    (PICTURES / "terminal.svg").write_text(terminal_picture(shown, title="wattdock"), encoding="utf-8")
    chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if chromium is None or driver is None:
        sys.exit("no browser here for the report's picture: on Debian apt-get install chromium chromium-driver")
    report_picture(results, PICTURES / "report.png", chromium=chromium, driver=driver)


def on_terminal(words: list[str], folder: Path) -> str:
    """Return what `wattdock` prints in a folder, on a terminal of COLUMNS columns, colours and all.

    Raises:
        RuntimeError: It failed.
    """
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color"}
    with subprocess.Popen([WATTDOCK, *words], cwd=folder, stdout=theirs, stdin=theirs, env=env) as process:
        os.close(theirs)
        output = bytearray()
        while piece := _read(ours):
            output += piece
        if process.wait(LIMIT_S):
            raise RuntimeError(f"{words} ended with {process.returncode}")
    os.close(ours)
    return output.decode().replace("\r\n", "\n")


def terminal_picture(ansi: str, *, title: str) -> str:
    """Return an SVG picture of a terminal with this text, that loads nothing."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(ansi), soft_wrap=False)
        return FONT_FACE.sub("", console.export_svg(title=title))


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


def _read(file: int) -> bytes:
    try:
        return os.read(file, 65536)
    except OSError:
        # How Linux says that the other end is closed.
        return b""


if __name__ == "__main__":
    main()
