"""Read YAML 1.2 and remember on which line every key stands.

Knows YAML only: no setting, no experiment.
Source: YAML 1.2.2, section 10.3.2 (core schema), and the types of YAML 1.1, which PyYAML 6.0 resolves.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from wattdock.errors import ConfigError
from wattdock.opening import read_regular
from wattdock.text import nearest

if TYPE_CHECKING:
    from pathlib import Path

# The largest file: a study of thousands of experiments has a tenth of it.
MAX_BYTES = 1_000_000
# The deepest nesting: libyaml builds nested nodes by recursion in C, and too deep a recursion ends the process.
MAX_DEPTH = 100
# The largest whole number: Python refuses to print very large ones, and to make them floats.
MAX_BITS = 64
# Most values: aliases of aliases would make gigabytes of settings of a few lines.
MAX_NODES = 50_000
# As difflib's ratio, of files' names without their suffix: less alike is another study, no slip of the keys.
MISSPELT = 0.6
MERGE = "<<"
TAG = "tag:yaml.org,2002:"
# What text without quotes is, by tag; other text, such as a date or 1:30, is text.
FORMS = {
    "null": r"(~|null|Null|NULL|)\Z",
    "bool": r"(true|True|TRUE|false|False|FALSE)\Z",
    "int": r"([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z",
    "float": r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z",
}
# Text without quotes that YAML 1.1 reads as another switch or number than YAML 1.2: programs disagree on its meaning,
# and an engine would take the text "no" for true.
SWITCH = re.compile(r"yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF")
NUMBER = re.compile(r"[-+]?(0[0-9_]+|[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?|0b[01_]+)")
# What to do, by words of libyaml's and PyYAML's problems.
REMEDIES = {
    "cannot start any token": "indent with spaces, and quote text that begins with @, % or `",
    "another document": "keep one document in a file",
    "mapping values": "quote text that holds a colon and a space",
    "character escape": "write the character itself",
}

Location = tuple[str | int, ...]


# libyaml is ten times as fast; PyYAML's wheels are built with it.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    # The key None stands for any first character.
    yaml_implicit_resolvers = {None: [(TAG + tag, re.compile(form)) for tag, form in FORMS.items()]}  # noqa: RUF012


def read_yaml(path: Path) -> tuple[Any, dict[Location, int]]:
    """Return the data in a file, and the line, from 1, of every key and list item.

    Raises:
        ConfigError: The file cannot be read or is not UTF-8, or as `parse_yaml`.
    """
    try:
        text = read_regular(path, limit_bytes=MAX_BYTES, follow=True).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}", "save it as UTF-8") from error
    except OSError as error:
        beside = {file.stem: file for file in path.parent.glob("*.y*ml") if isinstance(error, FileNotFoundError)}
        near = nearest(path.stem, beside, cutoff=MISSPELT)
        remedy = f"did you mean {str(beside[near])!r}?" if near else "name a YAML file"
        raise ConfigError(f"{path}: {error.strerror or error}", remedy) from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> tuple[Any, dict[Location, int]]:
    """Return the data in a text, and the line, from 1, of every key and list item.

    Args:
        source: What messages call the text.

    Raises:
        ConfigError: It is not YAML, repeats a key, is absurdly large, or holds a value that programs read differently.
    """
    lines: dict[Location, int] = {}
    try:
        depth = 0
        # Values are counted before they are built: building many, or deep ones, takes too long, or ends the process.
        for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ConfigError(f"{source}: nested too deeply", "flatten it")
            if count > MAX_NODES:
                raise ConfigError(f"{source}: more than {MAX_NODES:,} values", "this is not an experiment file")
        loader = _Loader(text)
        node = loader.get_single_node()
        return (None if node is None else _plain(loader, node, (), lines, source)), lines
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = (getattr(error, "problem", None) or str(error).splitlines()[0]).removeprefix("but ")
        # libyaml's end of a file is the line behind its last.
        where = _place(source, min(mark.line, text.count(chr(10))) + 1) if mark else source
        remedy = next((remedy for words, remedy in REMEDIES.items() if words in problem), "fix the YAML")
        raise ConfigError(f"{where}: {problem}", remedy) from error


def _plain(loader: yaml.SafeLoader, node: yaml.Node, at: Location, lines: dict[Location, int], source: str) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(at, line)
    if len(lines) > MAX_NODES or len(at) > MAX_DEPTH:
        what = f"more than {MAX_NODES:,} values, or nested more than {MAX_DEPTH} deep"
        raise ConfigError(f"{source}: {what}", "does an alias refer to itself?")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, (*at, index), lines, source) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        where = _place(source, line) + f": {'.'.join(map(str, at))}" * bool(at)
        resolved = loader.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
        return _scalar(loader, node, resolved, where)
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key, line = key_node.value, key_node.start_mark.line + 1
        where = _place(source, line)
        if key == MERGE:
            raise ConfigError(f"{where}: `<<:` is not known here", "put what experiments share under `defaults:`")
        if key_node.tag != TAG + "str":
            seen = key if isinstance(key, str) else "a list or mapping"
            raise ConfigError(f"{where}: the key {seen} is not text", "quote it")
        if key in mapping:
            raise ConfigError(f"{where}: the key {key!r} is a duplicate", "remove one")
        lines[(*at, key)] = line
        mapping[key] = _plain(loader, value_node, (*at, key), lines, source)
    return mapping


def _place(source: str, line: int) -> str:
    return source if source.startswith("--") else f"{source}:{line}"


def _scalar(loader: yaml.SafeLoader, node: yaml.ScalarNode, resolved: str, where: str) -> Any:
    """Return a value; `resolved` is the tag that it has without quotes and without a tag of its own."""
    text = node.value
    if not node.style and (SWITCH.fullmatch(text) or NUMBER.fullmatch(text)):
        what = f"{where}: {text[:60]} means different values in YAML 1.1 and 1.2"
        remedy = "write true or false" if SWITCH.fullmatch(text) else "write a number without leading zeros and _"
        raise ConfigError(what, f"{remedy}, or quote the text")
    if node.tag not in (TAG + "str", resolved):
        raise ConfigError(f"{where}: unknown tag {node.tag.removeprefix(TAG)[:60]!r}", "remove it")
    value = loader.construct_object(node)
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ConfigError(f"{where}: a number of {value.bit_length():,} bits", "write a smaller one")
    return value
