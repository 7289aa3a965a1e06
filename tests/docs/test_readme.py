"""Commands of README and of the pages that hold its details can be given as they stand; its studies can be planned."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from docs.blocks import FENCE
from seams.console import UsageError, app

from wattdock.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Called

REPO = Path(__file__).resolve().parents[2]
README = (REPO / "README.md").read_text(encoding="utf-8")
STUDIES = (REPO / "docs/how-to/studies.md").read_text(encoding="utf-8")
PAGES = [REPO / "README.md", *sorted((REPO / "docs/how-to").glob("*.md"))]
PAGES += [REPO / "docs" / name for name in ("tutorial.md", "containers.md", "methodology.md")]
MEASUREMENTS = sorted((REPO / "docs/measurements").glob("*.md"))
SIGPIPE = 141


def commands(text: str) -> Iterator[str]:
    """Yield every `wattdock …` of the blocks and of the text, and what `make` makes of its variables."""
    for _, _, content in FENCE.findall(text):
        block = content.replace("\\\n", " ")
        yield from re.findall(r"^(?:\.venv/bin/)?wattdock (.*?)(?: +#.*)?$", block, re.MULTILINE)
        for backend, arguments in re.findall(r"^make run BACKEND=(\w+) ARGS='(.*?)'", block, re.MULTILINE):
            yield f"run --backend {backend} {arguments}"
        for study in re.findall(r"^make (?:run FILE|study STUDY)=(\S+)", block, re.MULTILINE):
            yield f"run {study}"
    yield from re.findall(r"`wattdock ([a-z][^`…]*)`", FENCE.sub("", text))


@pytest.mark.parametrize(
    ("file", "most"),
    [("README.md", 700), ("CONTRIBUTING.md", 800), *((page.relative_to(REPO), 600) for page in MEASUREMENTS)],
    ids=str,
)
def test_pages_that_people_read_whole_are_short(file: str | Path, most: int) -> None:
    """Everything counts, code and tables too; what is longer stands in other pages or in data."""
    assert len((REPO / file).read_text(encoding="utf-8").split()) <= most


@cache
def idle() -> Any:
    """Return the command with all below it, none of which does anything."""
    root: Any = typer.main.get_command(app)
    found = [root]
    for command in found:
        command.callback = None
        found += getattr(command, "commands", {}).values()
    return root


def parse(words: list[str]) -> None:
    """Read the words as `wattdock` does, and do nothing.

    Raises:
        UsageError: It has no such command or option, or they lack a value.
    """
    idle().main(words, standalone_mode=False)


def page_name(page: Path) -> str:
    return str(page.relative_to(REPO))


GIVEN = sorted({(page_name(page), command) for page in PAGES for command in commands(page.read_text(encoding="utf-8"))})


@pytest.mark.parametrize(("page", "command"), GIVEN)
def test_every_command_exists_with_its_options(page: str, command: str) -> None:
    """A name alone, as a sentence has it, may lack what it is applied to."""
    try:
        parse(shlex.split(command))
    except UsageError as error:
        # The class is one that typer keeps to itself.
        assert type(error).__name__ == "MissingParameter", f"{page}: {error}"  # noqa: PT017


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_page_is_passed_over(page: Path) -> None:
    """Else the check above could pass over a page in silence."""
    assert list(commands(page.read_text(encoding="utf-8")))


def test_every_study_that_is_named_is_there() -> None:
    """Examples are renamed now and then."""
    examples = {example for page in PAGES for example in re.findall(r"examples/[\w.-]+\.yaml", page.read_text())}
    assert examples
    assert [example for example in sorted(examples) if not (REPO / example).is_file()] == []


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        pytest.param(README, ["2 experiments, 1 load group,"], id="README"),
        pytest.param(STUDIES, ["29 experiments, 2 load groups,"], id="studies"),
    ],
)
def test_the_study_can_be_planned(text: str, counts: list[str], called: Called) -> None:
    """All of its keys and sweeps."""
    (study,) = [block for language, _, block in FENCE.findall(text) if language == "yaml"]
    Path("study.yaml").write_text(study)
    done = called("plan", "study.yaml", "--accelerator", "cpu")
    assert done.returncode == 0, done.stderr
    assert [count for count in counts if count not in done.stdout] == []


def test_the_exit_codes_are_those_of_the_command() -> None:
    """And of the shell, for a signal."""
    page = (REPO / "docs/exit-codes.md").read_text(encoding="utf-8")
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert table == {*ExitCode, SIGPIPE}
