"""The site builds strictly: every link leads somewhere, and reference pages hold what they are made from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
from site_reference import reference

from wattdock.config import ExperimentConfig
from wattdock.store import COLUMNS

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(REPO / "mkdocs.yml", folder)
    return folder


def build(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "--site-dir", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def text(site: Path, page: str) -> str:
    return (site / page).read_text(encoding="utf-8")


def test_code_that_a_page_shows_whole_is_the_code() -> None:
    """A block of Python that begins with a path of this repository stands in that file."""
    pages = [page.read_text(encoding="utf-8") for page in (REPO / "docs").rglob("*.md")]
    shown = [found for page in pages for found in re.findall(r"```python\n# (\S+\.py)\n(.*?)```", page, re.DOTALL)]
    assert shown
    assert [path for path, code in shown if code not in (REPO / path).read_text(encoding="utf-8")] == []


def test_the_reference_is_what_it_is_made_from() -> None:
    """An editor and a reader must not learn of a setting later than wattdock; `make reference` writes it again."""
    made = reference()
    assert {name: (REPO / "docs" / name).read_text(encoding="utf-8") for name in made} == made
    jsonschema.Draft202012Validator.check_schema(json.loads(made["study.schema.json"]))


def test_the_reference_names_every_setting_command_column_and_message(site: Path) -> None:
    """What it is made from is found whole."""
    settings, commands, results, wire = (
        text(site, f"reference/{name}.html") for name in ("settings", "commands", "results", "wire")
    )
    assert [name for name in ExperimentConfig.model_fields if f"<code>{name}</code>" not in settings] == []
    assert all(f"<code>{name}</code>" in settings for name in ("tensor_parallel_size", "device_map", "tp_size"))
    assert all(f"wattdock {name}" in commands for name in ("run", "bundle create", "reproduce", "results query"))
    assert "--max-output-tokens" in commands
    assert all(name in results for name in (*COLUMNS, "CPUs used by others", "environment.dataset"))
    assert all(name in wire for name in ("rpc Generate", "message TokenSeries", "optional int64 first_token_ns"))


def test_lists_hold_every_decision_and_measurement(site: Path) -> None:
    """A page that is in no list is never read."""
    for folder in ("decisions", "measurements"):
        shown = text(site, f"{folder}/index.html")
        names = [file.stem for file in (REPO / "docs" / folder).glob("*.md")]
        assert [name for name in names if f"{name}.html" not in shown] == []


class _Sources(HTMLParser):
    """What a page loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = {"script": "src", "img": "src", "link": "href", "iframe": "src"}
        if value := given.get(loads.get(tag, "")):
            self.found.append(value)


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    """Nobody is told who reads it, and it can be read without a network."""
    foreign = []
    for page in site.rglob("*.html"):
        parser = _Sources()
        parser.feed(page.read_text(encoding="utf-8"))
        foreign += [value for value in parser.found if value.startswith(("http:", "https:", "//"))]
    assert foreign == []
