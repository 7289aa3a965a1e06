"""Which interpreters a user can name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from refused import raises
from seams.launch import find_python

from wattdock.errors import ConfigError, PreflightError


@pytest.mark.parametrize("is_there", [False, True], ids=["absent", "no program"])
def test_an_interpreter_that_cannot_be_executed_is_refused_with_its_name(is_there: bool, tmp_path: Path) -> None:
    """The message names what was written; this interpreter will do."""
    named = tmp_path / "named"
    if is_there:
        named.write_text("print('not executable')")
        named.chmod(0o644)
    with raises(PreflightError if is_there else ConfigError, named, "runner_python"):
        find_python(named)
    with raises(ConfigError, "~nobody-here/python"):
        find_python("~nobody-here/python")
    assert find_python(sys.executable) == Path(sys.executable)
