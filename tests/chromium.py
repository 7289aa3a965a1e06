"""A real browser without a window."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver import Chrome

MISSING = "no chromium and chromedriver here: on Debian apt-get install chromium chromium-driver"


def is_there() -> bool:
    """Tell whether there is one."""
    return all(map(shutil.which, ("chromium", "chromedriver")))


@contextmanager
def opened(**logs: str) -> Iterator[Chrome]:
    """Yield Chromium, which keeps these logs; it ends with the block."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", logs)
    with webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver"))) as browser:
        browser.set_window_size(1280, 1000)
        # On a busy machine the rules of accessibility take longer than the half minute that scripts have.
        browser.set_script_timeout(300)
        yield browser
