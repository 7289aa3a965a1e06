"""What uv is told of pip's configuration, and what is said of its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from seams.launch import failure, pip_settings, run_uv, uv_call, uv_variables

if TYPE_CHECKING:
    from pathlib import Path

LISTED = """\
:env:.find-links='~ ~nobody-here/x /absent'
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
    assert command[-5:] == ["--no-config", "pip", "install", "x", "--no-index"]
    assert variables["UV_DEFAULT_INDEX"] == "https://u.example"
    assert (variables["UV_HTTP_TIMEOUT"], variables["ALL_PROXY"]) == ("7", "http://proxy.example:3128")
    assert (variables["UV_INDEX_STRATEGY"], variables["PATH"]) == ("unsafe-best-match", "/bin")


def test_uv_gets_no_constraints_beside_hashes(tmp_path: Path) -> None:
    """It would refuse them, and hashes say more."""
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nconstraint = /x/constraints.txt\n")
    environ = {"PATH": "/bin", "PIP_CONFIG_FILE": str(file)}
    _, hashed = uv_call(["pip", "install", "--require-hashes", "-r", "x"], environ)
    _, unhashed = uv_call(["pip", "install", "-r", "x"], environ)
    assert (hashed.get("UV_CONSTRAINT"), unhashed["UV_CONSTRAINT"]) == (None, "/x/constraints.txt")


UNKNOWN = ["Resolved 2 packages", "error: No solution found", "  cause: Because absent was not found."]
SILENT = ["error: Request failed", "  cause: Failed to fetch: https://me:pw@x/simple/a/", "  cause: c", "  cause: last"]
SILENT_PYTORCH = [SILENT[0], "  cause: Failed to fetch: https://download.pytorch.org/whl/cpu/a/", *SILENT[2:]]
FULL = ["error: Failed to fetch: stem", "  cause: No space left on device"]
REFUSED = ["error: Failed to fetch: stem", "  cause: HTTP status client error (403 Forbidden)"]
OLD = [
    "error: No solution found when resolving dependencies",
    "  cause: Because stem==2 has no wheels with a matching platform tag (e.g., `manylinux_2_28_x86_64`) and …",
    "",
    "hint: Wheels are available for `stem` (v2) on the following platforms: `manylinux_2_34_x86_64`",
]
YOUNG = [OLD[0], "  cause: Because stem==1 requires Python >=3.99 and only stem==1 is available, … cannot be used."]
RETRIED = ["warning: Failed to fetch: stem; retrying", *UNKNOWN]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            UNKNOWN,
            "No solution found: Because absent was not found; the configured package index lacks it or refuses access;",
        ),
        (
            SILENT,
            "Request failed: Failed to fetch: a from the configured package index: last; the configured package ",
        ),
        (
            SILENT_PYTORCH,
            "Request failed: Failed to fetch: a from PyTorch's: last; PyTorch's index, download.pytorch.org, does not ",
        ),
        (FULL, "Failed to fetch: stem: No space left on device; make room"),
        (
            REFUSED,
            "Failed to fetch: stem: HTTP status client error (403 Forbidden); the configured package index refuses ",
        ),
        (OLD, f"{OLD[0][7:]}: {OLD[1][9:]}: {OLD[3]}; this processor, C library (`ldd --version`) or Python"),
        (
            YOUNG,
            f"{YOUNG[0][7:]}: {YOUNG[1][9:-1]}; this processor, C library (`ldd --version`) or Python has ",
        ),
        (["something else"], "something else"),
        ([], "uv said nothing"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(said: list[str], words: str) -> None:
    """Without the address of an index, and so without its password."""
    assert failure(said).startswith(words)


@pytest.mark.parametrize(
    ("said", "calls"), [(SILENT, 2), (SILENT_PYTORCH, 2), (FULL, 1), (REFUSED, 1), (RETRIED, 1), ([], 1)]
)
def test_only_an_index_that_does_not_answer_is_given_up_for_the_cache(
    said: list[str], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other failure would be hidden by a call without a network, or repeated by it."""
    # An interpreter without pip, which has no configuration.
    monkeypatch.setattr("sys.executable", "/bin/false")
    environs: list[dict[str, str]] = []

    def call(_: list[str], environ: dict[str, str]) -> list[str]:
        environs.append(environ)
        return said

    assert run_uv(["pip", "install", "stem"], call, lambda _: None, environ={}) == failure(said)
    assert [environ.get("UV_OFFLINE") for environ in environs] == [None, "1"][:calls]
