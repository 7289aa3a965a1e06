"""With `--json`, every error that ends a command is an object on the error stream."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Called


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (("results", "list", "--json", "--nonsense"), "--nonsense"),
        (("show", "nothing", "--json"), "nothing"),
        (("estimate", "nothing", "--json"), "nothing"),
    ],
)
def test_an_error_is_an_object(called: Called, words: tuple[str, ...], seen: str) -> None:
    """Errors of the command line and of wattdock alike; nothing else is printed."""
    done = called(*words)
    assert (done.returncode, done.stdout) == (2, "")
    error = json.loads(done.stderr)["error"]
    assert error.keys() == {"what", "remedy", "cause"}
    assert seen in error["what"]
