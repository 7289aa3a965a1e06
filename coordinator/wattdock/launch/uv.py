"""Run uv with what this user configured for pip: indexes, wheel folders, certificates, timeouts, proxies.

uv reads no pip configuration. Where uv has settings of its own (`UV_…` variables), those win. The standard library
only: `python -I uv.py pip install …` is also how the Makefile fills an environment that holds nothing but uv.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# pip's options, uv's variables, and what stands between several values.
# Source: https://docs.astral.sh/uv/reference/environment/ and `pip install --help`.
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "constraint": ("UV_CONSTRAINT", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "retries": ("UV_HTTP_RETRIES", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
}
TRUE = ("1", "true", "yes", "on")
ALIASES = {"default-timeout": "timeout", "pypi-url": "index-url"}
# Strongest last. Source: pip documentation, "Configuration", precedence.
SECTIONS = ("global", "install", ":env:")
# pip takes the best version of all indexes; uv would take the first index that has any. Python itself is never fetched.
ALWAYS = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_PYTHON_DOWNLOADS": "never"}
ADDRESS = re.compile(r"[a-z+]+://[^\s`'\")]+")
CONFIGURED = "it is set in `pip config list`, or in variables UV_…"


def uv_call(words: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the whole environment of a call of uv: `environ`, and what pip is configured with."""
    command = [sys.executable, "-I", "-m", "pip", "config", "list"]
    # An environment without pip has nothing to carry over.
    listed = subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=False).stdout
    settings = pip_settings(listed)
    own = {name: value for name, value in environ.items() if value and name.startswith("UV_")}
    # The only one of these that uv has no variable for.
    alone = words[0] == "pip" and settings.get("no-index", "").lower() in TRUE
    options = ["--no-index"] if alone else []
    return [sys.executable, "-I", "-m", "uv", *words, *options], {**environ, **ALWAYS, **uv_variables(settings), **own}


def pip_settings(listed: str) -> dict[str, str]:
    """Return pip's configuration by option, from what `pip config list` prints. Pure."""
    settings: dict[str, str] = {}
    lines = [line.partition("=") for line in listed.splitlines()]
    for section in SECTIONS:
        for key, _, value in lines:
            if key.startswith(f"{section}.") and (text := str(ast.literal_eval(value))).strip():
                option = key.removeprefix(f"{section}.")
                settings[ALIASES.get(option, option)] = text
    return settings


def uv_variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Return uv's variables for pip's configuration."""
    found = {}
    for option, (variable, separator) in VARIABLES.items():
        values = settings.get(option, "").split()
        if option == "find-links":
            values = [value for value in values if _is_there(value)]
        if values:
            found[variable] = separator.join(values)
    return found


def _is_there(place: str) -> bool:
    """Whether a place for wheels exists, as far as that can be told here: uv fails where pip only warns."""
    return "://" in place or Path(place).expanduser().exists()


def failure(lines: Sequence[str]) -> str:
    """Return in one line what uv said last of an error, and what to do; addresses are shortened to what was asked for.

    An index's address may hold a password, and is its owner's to show.
    """
    said = [line.strip() for line in lines if line.strip()]
    starts = [number for number, line in enumerate(said) if line.startswith("error:")]
    error = said[starts[-1] :] if starts else []
    error = [line.removeprefix("error:").removeprefix("cause:").strip() for line in error]
    # The first causes say what was wanted, the last one what was in the way.
    words = [*error[:2], *error[2:][-1:]] or said[-1:] or ["uv said nothing"]
    text = ": ".join(ADDRESS.sub(_asked_for, word) for word in words)
    if "No space left" in text:
        return f"{text}; make room"
    if "No solution found" in text:
        return f"{text} The configured package index lacks it; {CONFIGURED}"
    if any("Failed to fetch" in line or "error sending request" in line for line in error):
        return f"{text}; the configured package index does not answer; {CONFIGURED}"
    return text


def _asked_for(address: re.Match[str]) -> str:
    """Return the package or file that an address ends with; nothing of where it leads."""
    _, *path = address[0].partition("://")[2].rstrip("/:,.").split("/")
    return f"{path[-1] if path else 'an answer'} from the configured package index"


def main() -> None:
    """Become uv."""
    command, environ = uv_call(sys.argv[1:], os.environ)
    os.execve(command[0], command, environ)


if __name__ == "__main__":
    main()
