"""Withhold secrets: the one place that decides what of an address, a variable or a text may be stored or shown.

An address keeps its scheme and host. What looks like a key or a password becomes `WITHHELD`. Names of models, paths,
digests, commits, UUIDs and images stay as they are; so a key of hexadecimal digits, or of small letters and digits, is
recognised by the name that stands before it only.
"""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

WITHHELD = "(withheld)"
# Names of variables that hold a secret, or the file of one. PASS may be a compiler's, but for a name's last word.
SECRET_NAME = re.compile(
    r"(?i)(^|_)(TOKEN|SECRET|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH|COOKIE|WEBHOOK|\w*KEY)(_|$)|PASSWORD|_(PWD|PASS|PAT|SAS)$"
)
# Two addresses may stand in one list.
ADDRESS = re.compile(r"""\b([A-Za-z][A-Za-z0-9+.-]{0,20})://((?:(?!,[a-z]{2,9}://)[^\s"'<>`\\|])+)""")
HOST = re.compile(r"((?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+)(?::\d{1,5})?)[\])}]*")
# What stands behind a secret's name; nothing, types and marks are no secrets.
VALUE = r"""\\*["']?[ \t]*[=:][ \t]*\\*["']?)(?!(?:null|none|true|false|str)\b|[(<*\[])[^\s"',;&\\})]{6,}"""
# Of a match, the first group stays.
KEYS = (
    # In an address: a login (of SSH: with a password), and what is a key by its name in the query.
    r"""((?<!ssh)://)(?![^\s"'<>`\\|/]*@sha256:)[^\s"'<>`\\|/]*@""",
    r"""(://)[^\s"'<>`\\|/@:]*:(?!\d{1,5}[/?#])[^\s"'<>`\\|]{1,200}@""",
    r"""([?&\#](?i:x-amz-\w+|[\w-]{0,40}(?:token|key|sig|signature|secret|password|auth|code))=)(?!\(withheld)[^\s"'&]{4,}""",
    # What services give out.
    r"""()\b(?:(?:hf|api_org)_[A-Za-z0-9]{20,}|[rs]k[-_][\w-]{20,}|npm_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}
        |github_pat_\w{30,}|glpat-[\w-]{16,}|A[KS]IA[0-9A-Z]{16}\b|AIza[\w-]{35}|ya29\.[\w-]{20,}|nvapi-[\w-]{20,}
        |x(?:ox[a-z]|app)-[A-Za-z0-9-]{10,}|pypi-[\w-]{30,}|dckr_pat_[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}
        |eyJ[\w-]{8,}(?:\.[\w-]{8,}){1,2})""",
    r"()-----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----(?:[\s\S]*?-----END[ ][A-Z ]*-----|[\s\S]*)",
    # Web hooks, whose path is the key.
    r"""(\b(?:hooks\.slack(?:-gov)?\.com/[a-z]+/|api\.telegram\.org/bot|discord(?:app)?\.com/api/webhooks/
        |office\.com/webhook\w*/))[^\s"'\\(][^\s"'\\]{7,}""",
    r"""((?i:\bauthorization\\*["']?\s*[:=]\s*\\*["']?(?:[a-z]+\s+)?|\bbearer\s+))[A-Za-z0-9._~+/-]{12,}=*""",
    # A login without a scheme: me:password@host.
    r"""((?<![\w/.%+-]))[\w.%+-]{1,80}:[^\s:/@"']{3,80}@(?=[\w-]+(?:\.[\w-]+)*(?:\.[a-z]{2,}\b|:\d{2,5}\b))""",
    r"""((?i:password|passwd|passphrase|secret|credentials?|signature|(?<=[_;])pwd|(?<![A-Za-z0-9_-])sig
        |(?<![A-Za-z0-9_-])token(?=\W{1,6}[^\s"']*\d)(?=\W{1,6}[^\s"']*[A-Za-z])
        |(?:api|account|access|shared|private|signing|storage|master)[_-]?key
        |(?:access|auth|hf|hub|api|refresh|session|security|bot|bearer|admin|github|gitlab)[_-]?token)"""
    + VALUE,
    r"""((?<!\S)--(?:[a-z]+-)?(?:token|password|secret|api-key)[ ])(?=\S*\d)[^\s(<-]\S{5,}""",
)
# What may be random: an AWS key, which holds slashes, or a run of a key's characters.
RUN = re.compile(r"(?<![\w/+.~-])[A-Za-z0-9/+]{40}(?![\w/+.=-])|[A-Za-z0-9+_-]{20,}={0,2}")
# A random run of letters and digits has some of each of these kinds; a digest has none of the last.
KINDS = ("[A-Z]", "[a-z]", "[0-9]", "[G-Zg-z]")
# The words that names are made of: Qwen, 3, Next, For, Causal, LM.
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Words of a random run have 1.9 characters, in 98 of 100 runs of 24 less than this; those of classes' names 3 and more.
RANDOM_WORD, RANDOM_CHARACTERS = 2.8, 20
# Shorter values stand in every text.
SECRET_CHARACTERS = 6


def is_secret(name: str, value: str) -> bool:
    """Whether an environment variable holds a secret, by its name or its value."""
    return bool(SECRET_NAME.search(name)) or holds_secret(value, {})


def is_secret_setting(name: str, value: str) -> bool:
    """Whether a setting holds a secret, by its name or its value."""
    return bool(value) and (holds_secret(f"{name}=anything-at-all", {}) or holds_secret(value, os.environ))


def withheld(text: str) -> str:
    """Return a text with scheme and host of its addresses, and without keys, passwords and the caller's own secrets."""
    return _without_keys(ADDRESS.sub(_scheme_and_host, text), os.environ)


def withheld_values(value: Any, name: str = "") -> Any:
    """Return nested settings with `withheld` texts; a text that a secret's name stands before is withheld whole."""
    if isinstance(value, dict):
        return {withheld(str(key)): withheld_values(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [withheld_values(inner, name) for inner in value]
    if not isinstance(value, str):
        return value
    return withheld(value) if not is_secret_setting(name, "-") else WITHHELD


def holds_secret(text: str, environ: Mapping[str, str]) -> bool:
    """Whether a text holds what looks like a key or password, or the value of a variable that is called so."""
    return _without_keys(text, environ) != text


def _scheme_and_host(address: re.Match[str]) -> str:
    """Return an address without user, password, path, query and fragment; a path of this machine stays."""
    scheme, whole = address.groups()
    if whole.startswith("/"):
        return address[0]
    rest = whole.rstrip(").,;:}")
    authority = re.split(r"[/?#;]", rest, maxsplit=1)[0]
    # Behind a password that holds a slash stands the host; so an @ in a path leaves nothing to tell.
    host = HOST.fullmatch(authority.rpartition("@")[2]) if "@" not in rest[len(authority) :] else None
    return f"{scheme}://{host[1] if host else WITHHELD}{whole[len(rest) :]}"


def _without_keys(text: str, environ: Mapping[str, str]) -> str:
    for key in KEYS:
        text = re.sub(key, rf"\1{WITHHELD}", text, flags=re.VERBOSE)
    text = RUN.sub(_without_random, text)
    values = _secret_values(tuple(environ.items()))
    return values.sub(WITHHELD, text) if values else text


def _without_random(run: re.Match[str]) -> str:
    """Return nothing of a run that is random."""
    parts = [part for part in re.split("[_-]+|=", re.sub("[/+]", "", run[0])) if len(part) >= RANDOM_CHARACTERS]
    mixed = (part for part in parts if all(re.search(kind, part) for kind in KINDS))
    return WITHHELD if any(len(part) < RANDOM_WORD * len(WORD.findall(part)) for part in mixed) else run[0]


@lru_cache(maxsize=8)
def _secret_values(variables: tuple[tuple[str, str], ...]) -> re.Pattern[str] | None:
    """Return a pattern of the values of secret variables, as they are and as JSON holds them; None without any."""
    values = {value for name, value in variables if is_secret(name, value) and not value.isdigit()}
    forms = {
        re.escape(form)
        for value in values
        for form in (value, json.dumps(value)[1:-1])
        if len(value) >= SECRET_CHARACTERS
    }
    longest_first = "|".join(sorted(forms, key=len, reverse=True))
    return re.compile(rf"(?<![A-Za-z0-9])(?:{longest_first})(?![A-Za-z0-9])") if forms else None
