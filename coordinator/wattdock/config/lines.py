"""Read YAML and remember on which line every key stands.

Knows YAML only: no setting, no experiment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1_000_000
# An alias is one node in many places; without a bound, a few lines of YAML become gigabytes of settings.
MAX_NODES = 200_000

Location = tuple[str | int, ...]


def read_yaml(path: Path) -> tuple[Any, dict[Location, int]]:
    """Return the plain data in `path` and the line, from 1, of every key and list item.

    Raises:
        ConfigError: The file cannot be read, is not UTF-8 or not YAML, repeats a key, or is absurdly large.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES:,} bytes; this is not an experiment file")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}; save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}; name an existing file") from error
    lines: dict[Location, int] = {}
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        return (None if node is None else _plain(loader, node, (), lines, path)), lines
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(_yaml_message(path, error)) from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply; flatten it") from error
    finally:
        loader.dispose()


def _yaml_message(path: Path, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{path}:{mark.line + 1}: {problem}; fix the YAML" if mark else f"{path}: {problem}; fix the YAML"


def _plain(loader: yaml.SafeLoader, node: yaml.Node, at: Location, lines: dict[Location, int], path: Path) -> Any:
    lines.setdefault(at, node.start_mark.line + 1)
    if len(lines) > MAX_NODES:
        raise ConfigError(f"{path}: more than {MAX_NODES:,} values; does an alias refer to itself?")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, (*at, index), lines, path) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node)
    loader.flatten_mapping(node)
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise ConfigError(f"{path}:{line}: the key {key!r} is not a word; quote it")
        if key in mapping:
            raise ConfigError(f"{path}:{line}: the key {key!r} stands here twice; remove one")
        lines[(*at, key)] = line
        mapping[key] = _plain(loader, value_node, (*at, key), lines, path)
    return mapping
