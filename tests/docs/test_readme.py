"""README's commands can be given as they stand, its study can be planned, and its exit codes are the command's."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from command import WATTDOCK
from docs.blocks import FENCE

from wattdock.cli import UsageError, app
from wattdock.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SIGPIPE = 141


def commands() -> Iterator[str]:
    """Yield every `wattdock …` of the blocks and of the text, and what `make run` makes of its variables."""
    for _, _, block in FENCE.findall(README):
        yield from re.findall(r"^\.venv/bin/wattdock (.*?)(?: +#.*)?$", block, re.MULTILINE)
        for backend, arguments in re.findall(r"^make run BACKEND=(\w+) ARGS='(.*?)'", block, re.MULTILINE):
            yield f"run --backend {backend} {arguments}"
    yield from re.findall(r"`wattdock ([a-z][^`…]*)`", FENCE.sub("", README))


def parse(words: list[str]) -> None:
    """Read the words as `wattdock` does, and do nothing.

    Raises:
        UsageError: It has no such command or option, or they lack a value.
    """
    root: Any = typer.main.get_command(app)
    found = [root]
    for command in found:
        command.callback = None
        found += getattr(command, "commands", {}).values()
    root.main(words, standalone_mode=False)


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_every_command_exists_with_its_options(command: str) -> None:
    """A name alone, as a sentence has it, may lack what it is applied to."""
    try:
        parse(shlex.split(command))
    except UsageError as error:
        # The class is one that typer keeps to itself.
        assert type(error).__name__ == "MissingParameter", error  # noqa: PT017


def test_what_no_command_takes_is_found() -> None:
    """The check above could fail."""
    for command in ("results list --bakend vllm", "messure", "scaling results --plot"):
        with pytest.raises(UsageError):
            parse(command.split())


def test_the_study_can_be_planned(tmp_path: Path) -> None:
    """All of its keys, sweeps and exclusions."""
    (study,) = [text for language, _, text in FENCE.findall(README) if language == "yaml"]
    (tmp_path / "study.yaml").write_text(study)
    words: list[str | Path] = [WATTDOCK, "plan", "study.yaml", "--accelerator", "cpu"]
    env = os.environ | {"WATTDOCK_HOME": str(tmp_path / "home")}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "excluded: 4 of 28 points" in done.stdout
    assert "25 experiments, 2 load group(s)" in done.stdout


def test_the_exit_codes_are_those_of_the_command() -> None:
    """And of the shell, for a signal."""
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert table == {*ExitCode, SIGPIPE}
