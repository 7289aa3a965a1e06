"""Stand-ins for names and secrets, the same one wherever a name stands. Pure.

Knows text, JSON values and Arrow tables; not where they come from.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

Kind = Literal["home", "user", "host", "secret"]
# Accounts and hosts of every machine: they say nothing about anybody.
EVERYBODYS = {"root", "nobody", "daemon", "nogroup", "localhost", "uid", "127.0.0.1", "0.0.0.0", "::", "::1"}
# A name inside a longer word is another word; the "n" of a line's end that a program wrote as "\n" is no part of one.
NOT_BEFORE, NOT_AFTER = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))", r"(?![A-Za-z0-9])"
HOME_OF = re.compile(r"/(?:home|Users)/([A-Za-z_][A-Za-z0-9_.-]*)")
# Where engines have a machine's name or address: torch's and vLLM's rendezvous, NCCL's lines, and variables, whose
# value may as well be a choice, a switch or any machine's word for itself.
HOST_IN = re.compile(
    r"""\btcp://(?P<rendezvous>[A-Za-z0-9][A-Za-z0-9.-]*):\d
    |://(?P<address>\d+\.\d+\.\d+\.\d+)(?=[:/])
    |\[(?P<socket>[A-Za-z0-9][A-Za-z0-9.-]*)\]:\d
    |^(?P<nccl>[A-Za-z0-9][A-Za-z0-9.-]*):\d+:\d+\ \[\d+\]\ NCCL
    |(?<=[A-Z0-9])_(?:IP|ADDR|ADDRESS|HOST|HOSTNAME|HOSTID|COMM_ID)["']?\s*(?:=[ ]*|:\s*)["']?(?:[a-z]+://)?\[?
     (?!127\.|\d+(?:\.\d+)?(?![A-Za-z0-9.:-])|(?i:auto|local|set|true|false|none|yes|no|on|off)(?![A-Za-z0-9.-]))
     (?P<variable>[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)
    """,
    re.VERBOSE | re.MULTILINE,
)
# Shapes of what services give out as keys; a group, where there is one, is the part that is secret.
SECRET_SHAPES = re.compile(
    r"""(?:\b|(?<=\\[nrt]))(?:
        hf_[A-Za-z0-9]{20,}
        |sk-[A-Za-z0-9_-]{20,}
        |gh[pousr]_[A-Za-z0-9]{30,} |github_pat_[A-Za-z0-9_]{30,} |glpat-[A-Za-z0-9_-]{16,}
        |AKIA[0-9A-Z]{16}\b |nvapi-[A-Za-z0-9_-]{20,} |xox[abprs]-[A-Za-z0-9-]{10,}
        |eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}
    )
    |-----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----.*?(?:-----END[ ][A-Z ]*PRIVATE[ ]KEY-----|\Z)
    |(?<=://)[^/\s:@]+:[^/\s@]+(?=@)
    |(?i:\bbearer\s+)(?P<bearer>[A-Za-z0-9._~+/-]{16,}=*)
    |(?i:\b[a-z_]*(?:password|passwd|secret|api_?key|access_token|auth_token|hf_token)\b\\*["']?\s*[=:]\s*\\*["']?)
     (?P<assigned>(?:(?!\\[nrt"'])[^\s"',;}]){6,})
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, order=True)
class Private:
    """Something that must not be in a bundle."""

    kind: Kind
    text: str


def private_in(text: str) -> set[Private]:
    """Return the secrets in a text, the users whose home folders are named, and machines that engines name."""
    found = {Private("user", name) for name in HOME_OF.findall(text)}
    found |= {Private("host", str(match[match.lastgroup or 0])) for match in HOST_IN.finditer(text)}
    for match in SECRET_SHAPES.finditer(text):
        found.add(Private("secret", next((one for one in match.groups() if one), match[0])))
    return found


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text of a JSON value; a key that names a text stands on the line above it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from texts_in(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if isinstance(one, str):
                yield f"{key}:\n{one}"
            else:
                yield key
                yield from texts_in(one)


@dataclass
class Redactor:
    """Puts stand-ins in place of what is private, and counts.

    Attributes:
        private: What to replace. A home folder stands as "/home/" and its user's stand-in.
        kept: Values that are left alone where they stand by themselves, such as a model's id: without them a result
            could not be read or run again.
        keys: Names of settings and fields, left alone where they are keys.
        times: How often each stand-in was put in.
    """

    private: Iterable[Private]
    kept: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    times: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        known = sorted(one for one in set(self.private) if one.text and one.text.lower() not in EVERYBODYS)
        self._stand_ins = _stand_ins(known)
        self._by_text = {one.text: stand_in for one, stand_in in self._stand_ins.items()}
        hosts = {one: stand_in for one, stand_in in self._stand_ins.items() if one.kind == "host"}
        self._by_lower = {one.text.lower(): stand_in for one, stand_in in hosts.items()}
        patterns = [_pattern(one) for one in sorted(known, key=_precedence)]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    @property
    def kinds(self) -> Mapping[str, str]:
        """Stand-in → kind, of those put in."""
        kinds = {stand_in: one.kind for one, stand_in in self._stand_ins.items()}
        return {stand_in: kinds[stand_in] for stand_in in sorted(self.times)}

    def text(self, text: str) -> str:
        """Return a text with stand-ins."""
        return self._pattern.sub(self._replace, text) if self._pattern else text

    def value(self, value: Any) -> Any:
        """Return a JSON value with stand-ins in all its texts, keys too."""
        if isinstance(value, str):
            return value if value in self.kept else self.text(value)
        if isinstance(value, list):
            return [self.value(one) for one in value]
        if isinstance(value, dict):
            return {self._key(key): self.value(one) for key, one in value.items()}
        return value

    def table(self, table: pa.Table, *, structural: Iterable[str]) -> pa.Table:
        """Return a table with stand-ins in its columns of text, but for those named as `structural`."""
        import pyarrow as pa

        for place, column in enumerate(table.schema):
            if pa.types.is_string(column.type) and column.name not in structural:
                texts = [None if one is None else self.text(one) for one in table[column.name].to_pylist()]
                table = table.set_column(place, column, pa.array(texts, column.type))
        return table

    def _key(self, key: str) -> str:
        return key if key in self.keys or key in self.kept else self.text(key)

    def _replace(self, match: re.Match[str]) -> str:
        stand_in = self._by_text.get(match[0]) or self._by_lower[match[0].lower()]
        self.times[stand_in] += 1
        return stand_in


def _pattern(one: Private) -> str:
    text = re.escape(one.text)
    if one.kind == "secret":
        return text
    before = r"(?<![A-Za-z0-9_.~-])" if one.kind == "home" else NOT_BEFORE
    return f"{before}{f'(?i:{text})' if one.kind == 'host' else text}{NOT_AFTER}"


def _precedence(one: Private) -> tuple[int, int]:
    """A secret before a home folder before a name, the longer one first."""
    return ("secret", "home", "host", "user").index(one.kind), -len(one.text)


def _stand_ins(known: list[Private]) -> dict[Private, str]:
    """Return a stand-in for each, none of which is itself the name of somebody here."""
    taken = {one.text.lower() for one in known}
    stand_ins: dict[Private, str] = {}
    for one in (*(one for one in known if one.kind != "home"), *(one for one in known if one.kind == "home")):
        prefix = "/home/user" if one.kind == "home" else one.kind
        owner = Private("user", one.text.rpartition("/")[2])
        if one.kind == "home" and owner in stand_ins:
            stand_ins[one] = f"/home/{stand_ins[owner]}"
            continue
        numbers = (f"{prefix}{number}" for number in range(1, len(known) + len(taken) + 2))
        used = {*stand_ins.values(), *(f"/home/{name}" for name in stand_ins.values())}
        stand_ins[one] = next(name for name in numbers if name not in taken and name not in used)
    return stand_ins
