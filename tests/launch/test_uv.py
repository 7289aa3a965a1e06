"""What uv is told of pip's configuration, and what is said of its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wattdock.launch.uv import failure, pip_settings, uv_call, uv_variables

if TYPE_CHECKING:
    from pathlib import Path

LISTED = """\
:env:.find-links='~ /absent'
:env:.default-timeout='180'
global.index-url='https://mirror.example/simple'
global.extra-index-url='\\nhttps://one.example/simple\\nfile:///two/simple'
global.cert='/etc/ca.pem'
global.timeout='15'
install.trusted-host='one.example two.example'
download.index-url='https://other.example/simple'
global.no-color='true'
"""


def test_pips_configuration_reaches_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment wins over a file; a folder of wheels that is not there is left out, as pip does."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert uv_variables(pip_settings(LISTED)) == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://one.example/simple file:///two/simple",
        "UV_FIND_LINKS": str(tmp_path),
        "UV_INSECURE_HOST": "one.example two.example",
        "UV_HTTP_TIMEOUT": "180",
        "SSL_CERT_FILE": "/etc/ca.pem",
    }


def test_a_pip_that_is_configured_by_variables_and_a_file_is_asked(tmp_path: Path) -> None:
    """uv's own variables win over what pip says, and nothing else of the environment is lost."""
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://file.example/simple\nproxy = http://proxy.example:3128\n")
    environ = {
        "PATH": "/bin",
        "PIP_CONFIG_FILE": str(file),
        "PIP_TIMEOUT": "7",
        "PIP_NO_INDEX": "1",
        "UV_DEFAULT_INDEX": "https://u.example",
    }
    command, variables = uv_call(["pip", "install", "x"], environ)
    assert command[-4:] == ["pip", "install", "x", "--no-index"]
    assert variables["UV_DEFAULT_INDEX"] == "https://u.example"
    assert (variables["UV_HTTP_TIMEOUT"], variables["ALL_PROXY"]) == ("7", "http://proxy.example:3128")
    assert (variables["UV_INDEX_STRATEGY"], variables["PATH"]) == ("unsafe-best-match", "/bin")


UNKNOWN = ["Resolved 2 packages", "error: No solution found", "  cause: Because absent was not found."]
SILENT = ["error: Request failed", "  cause: Failed to fetch: https://me:pw@x/simple/a/", "  cause: c", "  cause: last"]
FULL = ["error: write", "  cause: No space left on device"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            UNKNOWN,
            "No solution found: Because absent was not found. The configured package index lacks it; it is",
        ),
        (
            SILENT,
            "Request failed: Failed to fetch: a from the configured package index: last; the configured package ",
        ),
        (FULL, "write: No space left on device; make room"),
        (["something else"], "something else"),
        ([], "uv said nothing"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(said: list[str], words: str) -> None:
    """Without the address of an index, and so without its password."""
    assert failure(said).startswith(words)
