"""Withhold secrets: the one place that decides what of an address, a variable or a text may be stored or shown.

Stored text keeps scheme and host of an address; a message to a terminal keeps the path too, since the path tells what
to do. A key or password becomes `WITHHELD`. Names of models, paths, digests, commits, UUIDs and images stay; so a key
of hexadecimal digits, or of small letters and digits, is recognised only by the name before the key.
"""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WITHHELD = "(withheld)"
# Stands for the path of an address, so that nobody takes the host's front page for what was meant.
PATH_LEFT_OUT = "/…"
# Names of variables that hold a secret, or the file of one. PASS as a middle word may be a compiler's.
SECRET_VARIABLE = re.compile(
    r"(?i)(^|_)(TOKEN|SECRET|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH|COOKIE|WEBHOOK|\w*KEY)(_|$)|PASSWORD|_(PWD|PASS|PAT|SAS)$"
)
# Ends of settings' names that announce a secret in any text. A `token` is more often a word of a text: see below.
SECRET_NAME = r"""password|passwd|passphrase|secret|credentials?|signature|(?<=[_;])pwd|(?<![A-Za-z0-9_-])sig
    |(?:api|account|access|shared|private|signing|storage|master)[_-]?key
    |(?:access|auth|hf|hub|api|refresh|session|security|bot|bearer|admin|github|gitlab)[_-]?token"""
TOKEN = "(?<![A-Za-z0-9_-])token"
SECRET_SETTING = re.compile(rf"(?i:{SECRET_NAME}|{TOKEN})\Z", re.VERBOSE)
# Two addresses may stand in one list.
ADDRESS = re.compile(r"""\b([A-Za-z][A-Za-z0-9+.-]{0,20})://((?:(?!,[a-z]{2,9}://)[^\s"'<>`\\|])+)""")
HOST = re.compile(r"((?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+)(?::\d{1,5})?)[\])}]*")
# In a bucket or on a hub, a path is the name of a model.
OBJECT_STORES = r"s3a?|gs|gcs|az|abfss?|adl|wasbs?|oss|cos|obs|tos|hdfs|hf|modelscope"
# A secret's name is followed by a value; empty values, types and brackets are no secrets.
VALUE = r"""\\*["']?[ \t]*[=:][ \t]*\\*["']?)(?!(?:null|none|true|false|str)\b|[(<*\[])[^\s"',;&\\})]{6,}"""
# The first group of each pattern stays, the rest is withheld.
KEY_PATTERNS = (
    # In an address: a login (for SSH, only one with a password), and a query's value by its name.
    r"""((?<!ssh)://)(?![^\s"'<>`\\|/]*@sha256:)[^\s"'<>`\\|/]*@""",
    r"""(://)(?:[^\s"'<>`\\|/@:]*:(?!\d{1,5}[/?#])[^\s"'<>`\\|]{1,200}|/[^\s"'<>`\\|/@:]*:[^\s"'<>`\\|/@]{1,200})@""",
    r"""([?&\#](?i:x-amz-\w+|[\w-]{0,40}(?:token|key|sig(?:nature)?|secret|password|auth|code))=)(?!\(withheld)[^\s"'&]{4,}""",
    # Keys whose shape a service has published; an address may hold _ as %5F. No path begins with `sk-`.
    r"""()(?:\b|(?<=%[\dA-Fa-f]{2}))(?:(?:hf|api_org)(?:_|%5[Ff])[A-Za-z0-9]{20,}|sk-[\da-f]{32}\b|[rs]k_(?:live|test)_\w{16,}
        |(?<!/)[rs]k[-_](?=[\w-]*\d)(?=[\w-]*[a-z])(?=[\w-]*[A-Z])[\w-]{20,}|sk-(?:proj|svcacct|admin|ant|or|lf)-[\w-]{20,}
        |(?:npm|gh[pousr])(?:_|%5[Ff])[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{16,}|A[KS]IA[0-9A-Z]{16}\b
        |AIza[\w-]{35}|ya29\.[\w-]{20,}|nvapi-[\w-]{20,}|x(?:ox[a-z]|app)-[A-Za-z0-9-]{10,}|pypi-[\w-]{30,}
        |dckr_pat_[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}|eyJ[\w-]{8,}(?:\.[\w-]{8,}){1,2})""",
    r"()-----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----(?:[\s\S]*?-----END[ ][A-Z ]*-----|[\s\S]*)",
    # Web hooks, whose path is the key.
    r"""(\b(?:hooks\.slack(?:-gov)?\.com/[a-z]+/|api\.telegram\.org/bot|discord(?:app)?\.com/api/webhooks/
        |office\.com/webhook\w*/))[^\s"'\\(][^\s"'\\]{7,}""",
    # Headers of HTTP.
    r"""((?i:\bauthorization\\*["']?\s*[:=]\s*\\*["']?(?:[a-z]+\s+)?|\bbearer\s+))
        (?:[A-Za-z0-9._~+/-]{12,}|(?<=asic[ ])[A-Za-z0-9+/]{6,})=*""",
    r"""((?i:\bcookie\\*["']?\s*[:=]\s*\\*["']?))[^\s"'\\=(]{1,100}=[^\n"'\\]+""",
    # A login without a scheme: me:password@host, and that of a command.
    r"""((?<![\w/.%+-]))[\w.%+-]{1,80}:[^\s:/@"']{3,80}@(?=[\w-]+(?:\.[\w-]+)*(?:\.[a-z]{2,}\b|:\d{2,5}\b))""",
    r"""(\b(?:curl|wget)\b[^\n]{0,200}?[\s"'](?:-u|--user)[\s"'=,]{0,4}[^\s"':]{1,80}:)[^\s"':(][^\s"':]{2,}""",
    # Settings, and options of a command.
    rf"""((?i:{SECRET_NAME}|{TOKEN}(?=\W{{1,6}}[^\s"']*\d)(?=\W{{1,6}}[^\s"']*[A-Za-z])){VALUE}""",
    rf"""((?i:{TOKEN})(?:=\\*["']?|\\*["'][ ]?:[ ]?\\*["']))[A-Za-z0-9-]{{8,}}+(?![\w.(\[])""",
    r"""((?<![\w-])--(?:\w+-)?(?:token|password|secret|api-key)(?:[ ](?=\S*\d)|=))(?!\d+\b)[^\s(<"'-][^\s"'\\]{5,}""",
    r"((?i:\b(?:key|token|secret|password)\b)\W{1,4})[0-9a-f]{40}\b",
)
KEYS = [re.compile(pattern, re.VERBOSE) for pattern in KEY_PATTERNS]
# What may be random: a run of a key's characters, for AWS with slashes. Names of models and paths are not.
RUN = re.compile(
    rf"""(?P<name>(?i:(?<![A-Za-z])(?:[a-z]+_)?(?:model|path|tokenizer))\\*["']?[ \t]*[=:][ \t]*\\*["']?[\w./~+@%-]+
    |\b(?:{OBJECT_STORES})://[^\s"'<>`\\|]+)|(?P<address>://[^\s"'<>`\\|/][^\s"'<>`\\|]*)
    |(?<![\w/+.~-])[A-Za-z0-9/+]{{40}}(?![\w/+.=-])|(?P<path>(?<![\w/.~+@%-])[\w.~+@%-]*+/[\w./~+@%-]*+(?!=))
    |[A-Za-z0-9+_-]{{20,}}=*""",
    re.VERBOSE,
)
# A line that does not match both of these, of which the first is fast, has nothing that is random.
LONG_RUN = re.compile("[A-Za-z0-9/+]{20}")
MIXED_RUN = re.compile(
    r"(?<![A-Za-z0-9+])(?=[a-z0-9/+]{0,60}[A-Z])(?=[A-Za-z/+]{0,60}\d)(?:[A-Za-z0-9+]{20}|[A-Za-z0-9/+]{40}(?![\w/+.=-]))"
)
# A random run of letters and digits has some of each of these kinds; a digest has none of the last.
KINDS = ("[A-Z]", "[a-z]", "[0-9]", "[G-Zg-z]")
# The words that names are made of: Qwen, 3, Next, For, Causal, LM.
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Words of a random run have 1.9 characters, in 98 of 100 runs of 24 less than this; those of classes' names 3 and more.
RANDOM_WORD_CHARACTERS = 2.8
# Shorter runs are names of kernels and versions; in addresses, where package hosts put keys, these are rare.
RANDOM_CHARACTERS, RANDOM_CHARACTERS_OF_ADDRESS = 20, 12
# C++ and Rust name functions so.
MANGLED = re.compile("_+(?:Z|RN)")
# Values of variables that stand in many texts: short ones, numbers, words and paths.
ORDINARY = re.compile(r".{0,7}|\d+|[^\W\d_]{0,11}|[~.]?(?:/[\w .-]+){2,}/?", re.DOTALL)


def is_secret_variable(name: str, value: str) -> bool:
    """Whether an environment variable holds a secret, by its name or its value."""
    return bool(SECRET_VARIABLE.search(name)) or holds_secret(value, {})


def is_secret_name(name: str) -> bool:
    """Whether a setting's name announces a secret."""
    return bool(SECRET_SETTING.search(name))


def withheld(text: str, *, keep_paths: bool = False) -> str:
    """Return a text without keys, passwords, the caller's own secrets, and all but scheme and host of addresses.

    With `keep_paths`, for a terminal, addresses keep a path that holds nothing like a key.
    """

    def public_part(address: re.Match[str]) -> str:
        scheme, whole = address.groups()
        # A path of this machine stays, and what was withheld before.
        if whole.startswith("/") or whole.rstrip(").,;:}") == WITHHELD[:-1]:
            return address[0]
        rest = whole.rstrip(").,;:}")
        authority = re.split(r"[/?#;]", rest, maxsplit=1)[0]
        path = re.split(r"[?#;]", rest[len(authority) :], maxsplit=1)[0]
        # After a password that holds a slash comes the host; so an @ in a path leaves nothing to tell.
        host = HOST.fullmatch(authority.rpartition("@")[2]) if "@" not in rest[len(authority) :] else None
        if len(path) > 1 and not re.fullmatch(OBJECT_STORES, scheme):
            like_key = any(_is_random(part, RANDOM_CHARACTERS_OF_ADDRESS) for part in re.findall("[A-Za-z0-9]+", path))
            path = path if keep_paths and not like_key else PATH_LEFT_OUT
        return f"{scheme}://{host[1] + path if host else WITHHELD}{whole[len(rest) :]}"

    return _without_keys(text, os.environ, partial(ADDRESS.sub, public_part))


def withheld_values(value: Any, name: str = "") -> Any:
    """Return nested settings with `withheld` texts; a text or number under a secret's name is withheld whole."""
    if isinstance(value, dict):
        return {withheld(str(key)): withheld_values(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [withheld_values(inner, name) for inner in value]
    if is_secret_name(name) and value is not None and not isinstance(value, bool):
        return WITHHELD
    # The name tells a model from a key.
    before = f"{withheld(name)}: "
    return withheld(before + value).removeprefix(before) if isinstance(value, str) else value


def holds_secret(text: str, environ: Mapping[str, str]) -> bool:
    """Whether a text holds a key, a password or the value of a secret variable."""
    return _without_keys(text, environ, str) != text


def _without_keys(text: str, environ: Mapping[str, str], shorten_addresses: Callable[[str], str]) -> str:
    # A private key has several lines; other lines are judged alone, so that no pattern meets a long text.
    lines = [text] if "PRIVATE KEY" in text else text.split("\n")
    for number, line in enumerate(lines):
        lines[number] = shorten_addresses(line)
        for key in KEYS:
            lines[number] = key.sub(rf"\1{WITHHELD}", lines[number])
        if LONG_RUN.search(lines[number]) and MIXED_RUN.search(lines[number]):
            lines[number] = RUN.sub(_without_random, lines[number])
    text = "\n".join(lines)
    values, pattern = _secret_values(tuple(environ.items()))
    return pattern.sub(WITHHELD, text) if any(value in text for value in values) else text


def _without_random(run: re.Match[str]) -> str:
    """Return nothing of a run that is random, and of an address what is not random."""
    if run["address"]:
        return re.sub("[A-Za-z0-9+_-]{20,}={0,2}", lambda part: _without_random(RUN.fullmatch(part[0]) or part), run[0])
    # In a path, in contrast to a key with slashes, stands a word.
    word = any(re.fullmatch("[A-Z]?[a-z]{3,}", part) for part in run[0].split("/"))
    if run["name"] or run["path"] or word or MANGLED.match(run[0]):
        return run[0]
    parts = re.split("[_-]+|=", re.sub("[/+]", "", run[0]))
    mixed = (part for part in parts if all(re.search(kind, part) for kind in KINDS))
    return WITHHELD if any(_is_random(part, RANDOM_CHARACTERS) for part in mixed) else run[0]


def _is_random(run: str, least: int) -> bool:
    return least <= len(run) < RANDOM_WORD_CHARACTERS * len(WORD.findall(run))


@lru_cache(maxsize=8)
def _secret_values(variables: tuple[tuple[str, str], ...]) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """Return values of secret variables, as they are and as JSON holds them, and a pattern of these as whole words."""
    values = {value for name, value in variables if not ORDINARY.fullmatch(value) and is_secret_variable(name, value)}
    forms = sorted({form for value in values for form in (value, json.dumps(value)[1:-1])}, key=len, reverse=True)
    return tuple(forms), re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, forms))})(?![A-Za-z0-9])")
