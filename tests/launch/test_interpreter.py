"""Which interpreters that a user names can run a runner."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from refused import raises
from seams.launch import check_python, find_python

from wattdock.errors import ConfigError, PreflightError


@pytest.mark.parametrize(
    ("script", "value"),
    [
        (None, "runner_python"),
        ("", "runner_python"),
        ('exec {python} -I -S "$@"', "'grpc'"),
        ('shift; exec {python} -c "{old}" "$@"', "3.9.1"),
        ("echo not today >&2; exit 4", "not today"),
        ("exit 1", "runner_python"),
    ],
    ids=["absent", "no program", "without grpc", "too old", "no Python", "silent"],
)
def test_an_interpreter_that_cannot_run_a_runner_is_refused_with_the_reason(
    script: str | None, value: str, tmp_path: Path
) -> None:
    """The message names what was written and what is wrong; this interpreter will do, and so does a wrapper."""
    old = "import sys; sys.version_info = (3, 9, 1); sys.version = '3.9.1 (x)'; exec(sys.argv[1])"
    named, good = tmp_path / "named", tmp_path / "good"
    for path, text in ((named, script), (good, 'exec {python} "$@"')):
        if text is not None:
            path.write_text("#!/bin/sh\n" + text.format(python=sys.executable, old=old))
            path.chmod(0o755 if text else 0o644)
    with raises(PreflightError if named.exists() else ConfigError, named, value):
        check_python(find_python(named), {})
    with raises(ConfigError, "~nobody-here/python"):
        find_python("~nobody-here/python")
    for path in (good, Path(sys.executable)):
        assert find_python(path) == path
        check_python(path, {})
