"""Run uv with the user's configuration of pip: indexes, wheel folders, certificates, timeouts, proxies.

uv itself reads no pip configuration. Variables `UV_…` win over it; uv's own files (`uv.toml`, `pyproject.toml`) are not
read, since uv would look for them in all folders above the working folder, where anybody may have put one. Both
programs work in `/`, so paths must be absolute. This file imports the standard library only: `python -I uv.py pip
install …` is how the Makefile fills an environment that holds nothing but uv. Where no index answers, what uv has
cached must do.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# pip's option → uv's variable, and the separator between several values.
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
ALIASES = {"default-timeout": "timeout"}
# Strongest last. Source: pip documentation, "Configuration", precedence.
SECTIONS = ("global", "install", ":env:")
# Like pip, uv looks in all indexes, which are the caller's own choice; it would stop at the first that has any version.
# Python itself is never fetched.
ALWAYS = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_PYTHON_DOWNLOADS": "never"}
ADDRESS = re.compile(r"[a-z+]+://[^\s`'\")]+")
CONFIGURED = "it is set in `pip config list`, or in variables UV_…"
UNANSWERED = f"the configured package index does not answer and uv's cache lacks packages; {CONFIGURED}"
# The one index that wattdock itself names, for torch's builds for CPUs.
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PYTORCH_HOST = PYTORCH_CPU_INDEX.split("/")[2]
UNANSWERED_PYTORCH = (
    f"PyTorch's index, {PYTORCH_HOST}, does not answer, and the configured one has no CPU build of torch; "
    "put that wheel into a folder that `find-links` names in pip's configuration"
)
NO_WHEEL = (
    "this processor, C library (`ldd --version`) or Python has no wheel: use --launcher docker, or --runner-python "
    "without --locked"
)
# Words in uv's last error → what to do. The first match counts: of a refused package uv also says “Failed to fetch”.
ADVICE = {
    **dict.fromkeys(("No space left", "quota exceeded"), "make room"),
    "initialize cache": "name a folder that you may write to in the variable UV_CACHE_DIR",
    "Hash mismatch": f"the configured package index has another file than the lock names; {CONFIGURED}",
    "HTTP status client": f"the configured package index refuses the request; {CONFIGURED}",
    **dict.fromkeys(("no wheels with a matching", "no usable wheels", "requires Python"), NO_WHEEL),
    # To uv, a package that an index refuses is a package that the index lacks.
    "No solution found": f"the configured package index lacks it or refuses access; {CONFIGURED}",
    **dict.fromkeys(("Failed to fetch", "error sending request"), UNANSWERED),
}


def run_uv(
    words: Sequence[str],
    call: Callable[[list[str], dict[str, str]], Sequence[str] | None],
    say: Callable[[str], None],
    *,
    environ: Mapping[str, str],
) -> str | None:
    """Call uv, and where no index answers once more without a network; return why it failed, None if it did not.

    Args:
        call: Runs a command line with an environment; returns its output, by lines, if it fails.
        say: Receives a line if the network is given up.
        environ: Environment of uv and of pip, whose configuration is asked for.
    """
    command, variables = uv_call(words, environ)
    if (output := call(command, variables)) is None:
        return None
    error = failure(output)
    if error.endswith((UNANSWERED, UNANSWERED_PYTORCH)):
        say("a package index does not answer; taking packages from uv's cache")
        if call(command, variables | {"UV_OFFLINE": "1"}) is None:
            return None
    return error


def uv_call(words: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment of a call of uv: `environ` with pip's configuration added."""
    command = [sys.executable, "-I", "-m", "pip", "config", "list"]
    # An interpreter without pip has no such configuration.
    listed = subprocess.run(
        command, env=dict(environ), cwd=os.sep, capture_output=True, text=True, errors="replace", check=False
    )
    settings = pip_settings(listed.stdout)
    # uv has no variable for this option.
    offline = words[0] == "pip" and settings.get("no-index", "").lower() in TRUE
    options = ["--no-index"] if offline else []
    uv_settings = {name: value for name, value in environ.items() if value and name.startswith("UV_")}
    if "--require-hashes" in words:
        # uv takes none beside hashes, which say more.
        settings.pop("constraint", None)
    environ = {**environ, **ALWAYS, **uv_variables(settings), **uv_settings}
    return [sys.executable, "-I", "-m", "uv", "--no-config", *words, *options], environ


def pip_settings(output: str) -> dict[str, str]:
    """Return pip's configuration by option, from what `pip config list` prints. Pure."""
    settings: dict[str, str] = {}
    lines = [line.partition("=") for line in output.splitlines()]
    for section in SECTIONS:
        for key, _, value in lines:
            if key.startswith(f"{section}.") and (text := str(ast.literal_eval(value))).strip():
                option = key.removeprefix(f"{section}.")
                settings[ALIASES.get(option, option)] = text
    return settings


def uv_variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Return uv's variables for pip's configuration."""
    variables = {}
    for option, (variable, separator) in VARIABLES.items():
        values = settings.get(option, "").split()
        if option == "find-links":
            # Unlike Path's, it raises nothing where there is no such user.
            places = [os.path.expanduser(value) for value in values]  # noqa: PTH111
            # uv fails where pip only warns of a folder that is not there; no relative path counts.
            values = [p for p in places if "://" in p or (Path(p).is_absolute() and Path(p).exists())]
        if values:
            variables[variable] = separator.join(values)
    return variables


def failure(lines: Sequence[str]) -> str:
    """Return uv's last error in one line, with what to do; of an address only the package or file is shown.

    The address of an index may hold a password.
    """
    output = [line.strip() for line in lines if line.strip()] or ["uv said nothing"]
    # The last error with its causes, or the last line.
    start = max((number for number, line in enumerate(output) if line.startswith("error:")), default=-1)
    error = [line.removeprefix("error:").removeprefix("cause:").strip() for line in output[start:]]
    # The first causes name the package, the last one the obstacle.
    causes = ": ".join(ADDRESS.sub(_without_index, cause) for cause in [*error[:2], *error[2:][-1:]])
    told = "\n".join(error)
    advice = next((advice for words, advice in ADVICE.items() if words in told), None)
    if advice == UNANSWERED and f"//{PYTORCH_HOST}/" in told:
        advice = UNANSWERED_PYTORCH
    return f"{causes.removesuffix('.')}; {advice}" if advice else causes.removesuffix(".")


def _without_index(address: re.Match[str]) -> str:
    """Return the package or file that an address ends with, without the index."""
    host, *path = address[0].partition("://")[2].rstrip("/:,.").split("/")
    index = "PyTorch's" if host == PYTORCH_HOST else "the configured package index"
    return f"{path[-1] if path else 'an answer'} from {index}"


def run_command(command: list[str], environ: dict[str, str]) -> list[str] | None:
    """Run a command line, whose stdout is this process's; return what it wrote on stderr, by lines, if it fails."""
    done = subprocess.run(
        command, env=environ, cwd=os.sep, stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    return done.stderr.splitlines() if done.returncode else None


def main() -> int:
    """Run uv; return 0, 3 with the reason on stderr, or 130 after Ctrl-C."""
    say = functools.partial(print, file=sys.stderr)
    try:
        error = run_uv(sys.argv[1:], run_command, say, environ=os.environ)
    except KeyboardInterrupt:
        return 130
    if error:
        say(error)
    return 3 if error else 0


if __name__ == "__main__":
    sys.exit(main())
