"""Read YAML and remember on which line every key stands.

Knows YAML only: no setting, no experiment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from wattdock.errors import ConfigError
from wattdock.opening import read_regular

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
# The tag of the key `<<`.
MERGE = "tag:yaml.org,2002:merge"

Location = tuple[str | int, ...]
# Ten times as fast where PyYAML was built with libyaml, as its wheels are.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path) -> tuple[Any, dict[Location, int]]:
    """Return the data in a file, and the line, from 1, of every key and list item.

    Raises:
        ConfigError: The file cannot be read, is not UTF-8 or not YAML, repeats a key, or is absurdly large.
    """
    try:
        text = read_regular(path, limit_bytes=MAX_BYTES, follow=True).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}", "save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", "name an experiment file") from error
    lines: dict[Location, int] = {}
    try:
        depth = 0
        # Values are counted before they are built: building many, or deep ones, takes too long, or ends the process.
        for count, event in enumerate(yaml.parse(text, Loader=LOADER)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ConfigError(f"{path}: nested too deeply", "flatten it")
            if count > MAX_NODES:
                raise ConfigError(f"{path}: more than {MAX_NODES:,} values", "this is not an experiment file")
        loader = LOADER(text)
        node = loader.get_single_node()
        return (None if node is None else _plain(loader, node, (), lines, path)), lines
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        # libyaml's end of a file is the line behind its last.
        line = f":{min(mark.line, text.count(chr(10))) + 1}" if mark else ""
        raise ConfigError(f"{path}{line}: {problem}", "fix the YAML") from error


def _plain(loader: yaml.SafeLoader, node: yaml.Node, at: Location, lines: dict[Location, int], path: Path) -> Any:
    lines.setdefault(at, node.start_mark.line + 1)
    if len(lines) > MAX_NODES:
        raise ConfigError(f"{path}: more than {MAX_NODES:,} values", "does an alias refer to itself?")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, (*at, index), lines, path) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        value = loader.construct_object(node)
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            line = node.start_mark.line + 1
            raise ConfigError(f"{path}:{line}: a number of {value.bit_length():,} bits", "write a smaller one")
        return value
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if key_node.tag == MERGE:
            raise ConfigError(f"{path}:{line}: `<<:` is not known here", "put what experiments share under `defaults:`")
        key = loader.construct_object(key_node)
        if not isinstance(key, str):
            raise ConfigError(f"{path}:{line}: the key {key!r} is not text", "quote it")
        if key in mapping:
            raise ConfigError(f"{path}:{line}: the key {key!r} is a duplicate", "remove one")
        lines[(*at, key)] = line
        mapping[key] = _plain(loader, value_node, (*at, key), lines, path)
    return mapping
