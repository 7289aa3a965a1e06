"""A pipe, a socket, a device or a folder where a command wants a file or a folder: one line, at once."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Called

FAKE = ("--backend", "fake", "--model", "shape:tiny-llama")
KINDS = ("pipe", "socket", "device", "folder", "link to itself")
# An order waits for ever if it opens a pipe.
HANGS_S = 60
CONFIG, PREFLIGHT, STORE = 2, 3, 7
# Of a command with x in the place of what it names: its codes where x is no file or folder, and where it is a folder
# that holds nothing, which some of them use.
VERBS: dict[tuple[str, ...], tuple[set[int], set[int]]] = {
    ("show", "./x"): ({CONFIG, STORE}, {CONFIG}),
    ("report", "./x", "-o", "out.html"): ({CONFIG, STORE}, {CONFIG}),
    ("compare", "./x", "./x"): ({CONFIG, STORE}, {CONFIG}),
    ("scaling", "./x"): ({CONFIG, STORE}, {CONFIG}),
    ("plot", "table", "./x", "-o", "out.md"): ({CONFIG, STORE}, {CONFIG}),
    ("bundle", "create", "./x", "-o", "out.tar"): ({CONFIG, STORE}, {CONFIG}),
    ("bundle", "verify", "./x"): ({CONFIG, STORE}, {STORE}),
    ("reproduce", "./x"): ({CONFIG, STORE}, {STORE}),
    ("results", "list", "--output-dir", "./x"): ({CONFIG, STORE}, {CONFIG}),
    ("results", "query", "SELECT 1", "--output-dir", "./x"): ({CONFIG, STORE}, {CONFIG}),
    ("results", "export", "--csv", "out.csv", "--output-dir", "./x"): ({CONFIG, STORE}, {CONFIG}),
    ("show", "a", "--output-dir", "./x"): ({CONFIG, STORE}, {CONFIG}),
    ("compare", "a", "b", "--output-dir", "./x"): ({CONFIG, STORE}, {CONFIG}),
    ("bundle", "create", "a", "--output-dir", "./x"): ({CONFIG, STORE}, {CONFIG}),
    ("estimate", "./x"): ({CONFIG}, {CONFIG}),
    ("run", "./x"): ({CONFIG}, {CONFIG}),
    ("plan", "./x"): ({CONFIG}, {CONFIG}),
    ("run", *FAKE, "--output-dir", "./x"): ({PREFLIGHT, STORE}, set()),
    ("plan", *FAKE, "--prompts", "./x"): ({CONFIG}, {CONFIG}),
    ("plan", "--backend", "fake", "--model", "./x"): ({CONFIG}, {CONFIG}),
    ("serve", "--port", "0", "--output-dir", "./x"): ({CONFIG}, set()),
}
CASES = [(words, kind) for words, (_, of_folder) in VERBS.items() for kind in KINDS if kind != "folder" or of_folder]
# It may be a folder by the time that something is stored there.
CASES.remove((("serve", "--port", "0", "--output-dir", "./x"), "link to itself"))


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """End a test that waits."""

    def ends(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, ends)
    signal.alarm(HANGS_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize(
    ("words", "kind"), CASES, ids=lambda part: part if isinstance(part, str) else "-".join(part[:2])
)
def test_whatever_is_no_such_file_is_refused_in_one_line(called: Called, words: tuple[str, ...], kind: str) -> None:
    """Nobody writes into the pipe, and nobody should be waited for."""
    place = Path("x")
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(place))
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(place)
    done = called(*words)
    lines = [line for line in done.stderr.splitlines() if line.startswith("wattdock: ")]
    assert done.returncode in VERBS[words][kind == "folder"], done.stderr
    assert (len(lines), "Traceback" in done.stderr) == (1, False), done.stderr
