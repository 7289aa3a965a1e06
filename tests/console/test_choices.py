"""What a command line offers is what there is: its lists stand apart, so that `--help` loads nothing heavy."""

from __future__ import annotations

import re
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, get_args

from seams.console import COMMANDS, SUB_APPS, SettingFlags, Width, study_of
from seams.reports import WIDTHS

from wattdock.config import ExperimentConfig

if TYPE_CHECKING:
    import pytest
    from conftest import Called


def test_every_choice_is_offered() -> None:
    """A width that is missing there could not be asked for."""
    assert set(WIDTHS) == set(get_args(Width))


def test_defaults_that_help_names_are_the_settings() -> None:
    """They stand in the help as text, since it loads no settings."""
    experiment, told = ExperimentConfig(), 0
    for flag in fields(SettingFlags):
        default = re.search(r"\[default: (.+)\]", flag.metadata["option"].help)
        setting = flag.metadata["setting"]
        if default and not setting.startswith("engine") and setting not in ("model", "workload.prompts.source"):
            assert f"{attrgetter(setting)(experiment)}".removesuffix(".0") == default[1], flag.name
            told += 1
    assert told >= 10
    assert (experiment.model.id, experiment.prompts.source) == ("smollm2-135m-instruct", "bundled")


def test_help_fits_a_terminal_of_eighty_columns_and_its_examples_can_be_typed(
    called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command is in a group, with the whole of its summary, and has examples whose options exist."""
    monkeypatch.setenv("COLUMNS", "80")
    said = called("-h").stdout
    assert max(map(len, said.splitlines())) <= 80
    assert not re.search(r"[a-z]\.\.\.", said)
    assert all(f"\n{group}:\n" in said for group in COMMANDS)
    assert all(f"\n  {name} " in said for name in SUB_APPS)
    words = [[command.__name__] for commands in COMMANDS.values() for command in commands]
    for name in SUB_APPS:
        _, commands = called(name, "-h").stdout.split("Commands:\n")
        assert "..." not in commands
        words += [[name, line.split()[0]] for line in commands.splitlines() if re.match(r"  \w", line)]
    for command in words:
        of_command, _, ending = called(*command, "-h").stdout.partition("Examples:\n")
        examples = re.findall(r"^    (wattdock .*)", ending, re.MULTILINE)
        assert examples, command
        for example in examples:
            assert example.startswith(" ".join(["wattdock", *command]))
            assert len(example) <= 76
            assert set(re.findall(r" (-[-a-z]+)", example)) <= set(re.findall(r" (-[-a-z]+)", of_command))


def test_the_dtype_of_a_flag_goes_into_the_backend_s_section() -> None:
    """Whatever the backend."""
    [experiment] = study_of(None, SettingFlags(backend="vllm", dtype="float16")).experiments
    assert experiment.section.dtype == "float16"
