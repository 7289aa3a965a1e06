"""Text for people and for programs: plurals, names of results and studies, dotted names of settings, JSON.

JSON has no infinity and no not-a-number. They are written as the texts "Infinity", "-Infinity" and "NaN": a reader that
expects a number refuses them, where `null` would pass for "not measured" and a bare `NaN` is no JSON at all. Half a
surrogate pair, as Python makes of a byte that is not UTF-8, is written as the text of its escape: what was measured is
stored whatever a machine's names hold.

Source: RFC 8259, sections 6 and 8.2; ProtoJSON writes such numbers in the same way.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import unicodedata
from collections import Counter
from itertools import takewhile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

# Half a surrogate pair, which UTF-8 has no form for.
SURROGATE = re.compile("[\ud800-\udfff]")
# What may be such a half in JSON: as it is, or as an escape, which halves of a whole pair have, too.
UNWRITABLE = re.compile(r"[\ud800-\udfff]|\\ud[89a-f]")
LOOPBACK = re.compile(r"(localhost|127\.[\d.]+|\[::1\])(:\d+)?/", re.IGNORECASE)
# Why nobody else could build an image.
NO_BASE_DIGEST = "no registry has its base; build it on a base that was pulled"
NOT_COMMITTED = "its sources are no commit's; commit, build and lock again"
COMPACT = (",", ":")
TOO_DEEP = "it is nested too deeply"
# Whoever walks through a document calls itself for each level.
MAX_DEPTH, PART_DEPTH = 100, 50
# What to write, by pydantic's type of a mistake; the limit stands in the mistake's context.
EXPECTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "bool_type": "true or false",
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "{le:g} or less",
    "less_than": "less than {lt:g}",
}
# The number of a study's run, which no id is: one has eight digits.
RUN = re.compile(r"-\d{1,7}$")
# The time that a result's or a study's name begins with, and how an experiment's id is shortened in it and in plans.
TIME, SHORT_ID = re.compile(r"\d{8}T\d{6}-"), re.compile(r"[0-9a-f]{8}")
# Characters left of a long text at a difference, and those before it: engine settings can have thousands.
LONG, LEAD = 100, 30
# Candidates that a message names.
MOST_LISTED = 4
# Format of figures and of their intervals' ends: zeros at the end count.
SIGNIFICANT = "#.4g"
# Characters of a study's name that its folder is called by; a file's name may have 255 bytes, a character up to 4.
NAME_CHARACTERS = 40
# As difflib's ratio. Names of models and GPUs are long, and people shorten them.
SIMILARITY_CUTOFF = 0.4


def pluralize(count: int, singular: str, plural: str | None = None) -> str:
    """Return "1 pass", "2 passes", "no GPU", ….

    Args:
        count: How many there are.
        singular: The noun for one of them.
        plural: The plural where it is not the singular and an s.
    """
    return f"{count or 'no'} {singular}" if count < 2 else f"{count} {plural or singular + 's'}"


def singular(plural: str) -> str:
    """Return the singular of a regular plural, as settings spell it: "batches" and "training_tokens" too."""
    words = plural.replace("_", " ")
    return words.removesuffix("es") if words.endswith(("ches", "shes", "sses", "xes")) else words.removesuffix("s")


def joules_per(unit: str) -> str:
    """Return "J/token" of "output tokens", "J/sample" of "samples"."""
    return f"J/{singular(unit).removeprefix('output ')}"


def amount(count: int | None, unit: str) -> str:
    """Return "1 run", "1,920 samples", "unknown steps" of a unit in the plural."""
    return f"{'unknown' if count is None else f'{count:,}'} {singular(unit) if count == 1 else unit}"


def significant(value: float, form: str = SIGNIFICANT) -> str:
    """Return a number with four significant digits, zeros at its end included, or in another format."""
    return format(value, form).removesuffix(".")


def expected(mistake: Mapping[str, Any]) -> str | None:
    """Return what to write instead, such as "write 1 or more"; None for a mistake that pydantic words well itself."""
    wanted = EXPECTED.get(mistake["type"])
    return f"write {wanted.format(**mistake.get('ctx', {}))}" if wanted else None


def nearest(name: str, names: Iterable[str], *, cutoff: float = SIMILARITY_CUTOFF) -> str | None:
    """Return the most similar of the names, ignoring case, or None where none is similar (difflib's ratio)."""
    by_lower = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def without_timestamp(name: str) -> str:
    """Return a result's or a study's name without the time that it begins with: mine-2."""
    return TIME.sub("", name, count=1)


def slug(name: str) -> str:
    """Return what a study's folder is called by: the letters and digits of any script in its name."""
    composed = unicodedata.normalize("NFC", name)
    return re.sub(r"[^\w.]+", "-", composed).strip("-.")[:NAME_CHARACTERS] or "study"


def matching_names(text: str, names: Iterable[str]) -> list[str]:
    """Return the names of results and studies that a person means by `text`; a whole name wins over beginnings.

    A study's name without the number of a run is whole, too, and means the latest run. So mine-2 is unclear where there
    are a second run of mine and a run of mine-2.yaml.
    """
    known = list(names)
    runs = runs_of(text, known)
    exact = [name for name in known if text == name] or [name for name in known if text == without_timestamp(name)]
    if runs and not exact:
        return [max(runs, key=run_number)]
    found = [*exact, *runs] or [name for name in known if _begins(name, text)]
    return found or (matching_names(slug(text), known) if "/" not in text and slug(text) != text else [])


def _begins(name: str, text: str) -> bool:
    """Whether a name begins with `text`, its time in front or not, or holds `text` as its id."""
    if SHORT_ID.fullmatch(text) and text in name.split("-"):
        return True
    return bool(text) and (name.startswith(text) or without_timestamp(name).startswith(text))


def runs_of(study: str, names: Iterable[str]) -> list[str]:
    """Return the names that are runs of the study that is called so."""
    return [name for name in names if _unnumbered(name) == study]


def run_number(name: str) -> int:
    """Return the number of a study's run, 0 without one: greater for a later run, though the clock was set back."""
    number = RUN.search(name)
    return int(number[0].removeprefix("-")) if number else 0


def _unnumbered(name: str) -> str | None:
    study, number = RUN.sub("", without_timestamp(name)), RUN.search(name)
    return study if number else None


def shortest_unique_names(names: Iterable[str]) -> dict[str, str]:
    """Return the shortest text that means each of these names of results and studies, and no other of them."""
    known = list(dict.fromkeys(names))
    counts = Counter(text for name in known for text in (without_timestamp(name), _unnumbered(name)))
    return {name: without_timestamp(name) if counts[without_timestamp(name)] == 1 else name for name in known}


def listed(texts: Sequence[str], most: int = MOST_LISTED, *, between: str = ", ") -> str:
    """Return the first few of the texts, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def excerpts_at_difference(texts: Sequence[str]) -> list[str]:
    """Return texts whole, or, where one is long, cut around the first place where they differ.

    Texts that differ only later than others are cut there, and texts that look alike even so end in their digests, so
    that the excerpts of different texts differ.
    """
    if max(map(len, texts), default=0) <= LONG:
        return list(texts)
    alike = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False)))
    start = max(0, alike - LEAD)
    cut = slice(start, start + LONG)
    excerpts = [("…" if start else "") + text[cut] + ("…" if len(text) > cut.stop else "") for text in texts]
    found = dict(zip(texts, excerpts, strict=True))
    for excerpt in set(excerpts):
        if len(same := [text for text in found if found[text] == excerpt]) > 1:
            found |= zip(same, excerpts_at_difference(same), strict=True)
    times = Counter(found.values())
    found |= {
        text: f"{excerpt[:90]}… #{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"
        for text, excerpt in found.items()
        if times[excerpt] > 1
    }
    return [found[text] for text in texts]


def dotted(nested: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf under its name, such as "workload.batch_size"; an empty mapping is a leaf, too.

    Args:
        nested: Settings, grouped in mappings.
        within: What the names begin with, its dot included.
    """
    for name, value in nested.items():
        if isinstance(value, dict) and value:
            yield from dotted(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value


def json_text(
    value: Any,
    *,
    indent: int | None = None,
    ascii_only: bool = True,
    separators: tuple[str, str] | None = None,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """Return `value` as strict JSON.

    Args:
        value: What `json.dumps` takes, or a pydantic model, whose fields get the names that are stored.
        indent: Spaces per level; one line without it.
        ascii_only: Write other characters as escapes.
        separators: Between items, and between a key and its value; `COMPACT` for the shortest.
        default: Converts values that JSON has no form for.
    """
    # Tested by attribute: importing pydantic takes a tenth of a second, and few who write JSON need it.
    plain = value.model_dump(mode="json", by_alias=True) if hasattr(value, "model_dump") else value
    how: Any = {"indent": indent, "ensure_ascii": ascii_only, "separators": separators, "default": default}
    try:
        text = json.dumps(plain, allow_nan=False, **how)
    except ValueError:
        return json.dumps(_writable(plain), allow_nan=False, **how)
    return json.dumps(_writable(plain), allow_nan=False, **how) if UNWRITABLE.search(text) else text


def from_json(content: str | bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """Return the value of a JSON text; of constants that are no JSON, Python's are read: config.json files hold them.

    Args:
        max_depth: Levels of nesting; `PART_DEPTH` for what is to be stored as a part of another document.

    Raises:
        ValueError: It is no JSON, or nested too deeply.
    """
    try:
        return _shallow(json.loads(content), max_depth)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error


def strict_json(content: str) -> tuple[Any, int]:
    """Return the value that a text begins with, and where the value ends.

    Raises:
        ValueError: The text begins with no JSON, it is nested too deeply, or an object in it has a key twice.
    """
    try:
        value, end = STRICT_JSON.raw_decode(content)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    return _shallow(value, MAX_DEPTH), end


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; of equal keys `json` would keep the last."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"duplicate key {twice[:60]!r}")
    return made


def _shallow(value: Any, max_depth: int) -> Any:
    """The value, if it has at most so many levels."""
    level = [value]
    for _ in range(max_depth):
        level = [outer for outer in level if isinstance(outer, dict | list) and outer]
        if not level:
            return value
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
    raise ValueError(TOO_DEEP)


STRICT_JSON = json.JSONDecoder(object_pairs_hook=_unique)


def is_on_loopback(image: str) -> bool:
    """Return whether an image's name says that a registry of this machine has it."""
    return LOOPBACK.match(image) is not None


def unbuildable(revision: str | None, base_digest: str | None) -> list[str]:
    """Return why nobody else could build an image with these labels, and behind a semicolon what to do."""
    is_committed = revision is not None and not revision.endswith("-dirty")
    return [NO_BASE_DIGEST] * (base_digest is None) + [NOT_COMMITTED] * (not is_committed)


def whole_characters(text: str) -> str:
    r"""Return a text that UTF-8 can hold: with `\xe9` for a byte that is not UTF-8, `\ud83d` for another half."""
    return text.encode(errors="backslashreplace").decode().replace(r"\udc", r"\x") if SURROGATE.search(text) else text


def _writable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_writable(key) if isinstance(key, str) else key: _writable(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(child) for child in value]
    return whole_characters(value) if isinstance(value, str) else value


def sums_of(hashes: Mapping[str, str]) -> str:
    """Return the content of SHA256SUMS, as `sha256sum -c` reads it, from the files' hashes by name."""
    return "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))
