"""Write reference pages and the schema of study files, from what they describe: `python docs/site_reference.py`."""

from __future__ import annotations

import html
import inspect
import re
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import typer.main
from study_schema import study_schema

from wattdock.console.main import app
from wattdock.launch.runners import PROTO_DIR
from wattdock.store import COLUMNS, Row
from wattdock.text import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema = dict[str, Any]
PROTO = PROTO_DIR / "wattdock_proto" / "v1" / "runner.proto"
LEAD = (
    "Made from the schema in `study.schema.json`, which editors read. Flags have the same names; `--set KEY=VALUE` "
    "sets any of them."
)
RESULTS_LEAD = (
    "What `results query`, `results export` and `wattdock.results` give; null where a result does not say. Names end "
    "in their units: `_j` joules, `_s` seconds, `_w` watts, `_per_s` per second; shares are from 0 to 1. Figures per "
    "token, request or second are of the headline's window, over all restarts."
)
# These first, then what they refer to.
FIRST = ("StudyFile", "ExperimentConfig")
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
BLOCK = re.compile(
    r"(?:^//[^\n]*\n)*^(?:service|message|enum) (?P<name>\w+) \{(?:\}$|.*?^\}$)", re.DOTALL | re.MULTILINE
)


def reference() -> dict[str, str]:
    """Return the files, below docs, that are made: what stands in them."""
    return {
        "study.schema.json": json_text(study_schema(), indent=2) + "\n",
        "reference/settings.md": _settings_page(),
        "reference/commands.md": _commands_page(),
        "reference/results.md": _results_page(),
        "reference/wire.md": _wire_page(),
    }


def _settings_page() -> str:
    """Return the settings of experiments and studies, a table for each group."""
    definitions: dict[str, Schema] = study_schema()["$defs"]
    sections = {
        section["title"]: section for section in definitions[FIRST[1]]["properties"].values() if "properties" in section
    }
    rest = sorted(name for name in definitions if name not in FIRST)
    parts = ["# Settings", LEAD]
    for name in (*FIRST, *sections, *rest):
        schema = _object(sections.get(name) or definitions[name])
        if schema.get("properties"):
            parts += [f"## {name}", *_described(schema)]
    return "\n\n".join(parts) + "\n"


def _commands_page() -> str:
    """Return every command with its arguments and options."""
    root = typer.main.get_command(app)
    parts = ["# Commands", "Made from the command itself: `wattdock COMMAND --help` says the same."]
    for name, command in _commands(root, "wattdock"):
        parts += [f"## {name}", html.escape(command.help or "", quote=False), _parameters(command)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _results_page() -> str:
    """Return the columns of the table of results, with where each stands in a result."""
    _, meanings = _docstring(inspect.getdoc(Row) or "")
    rows = ["| column | type | in result.json | in tables | meaning |", "|---|---|---|---|---|"]
    for name, hint in get_type_hints(Row).items():
        kind = " or ".join(part.__name__ for part in get_args(hint) or (hint,) if part is not NoneType)
        column = COLUMNS[name]
        place = f"`{column.place}`" if column.place else "computed"
        rows.append(f"| `{name}` | {kind} | {place} | {_cell(column.heading)} | {_cell(meanings.get(name, ''))} |")
    return "\n\n".join(["# Columns of results", RESULTS_LEAD, "\n".join(rows)]) + "\n"


def _wire_page() -> str:
    """Return the wire contract, message by message."""
    text = PROTO.read_text(encoding="utf-8")
    head = [line.removeprefix("//").strip() for line in text.split("syntax")[0].splitlines()]
    parts = ["# Wire", "\n".join(head).strip()]
    for match in BLOCK.finditer(text):
        parts += [f"## {match['name']}", f"```proto\n{match[0]}\n```"]
    return "\n\n".join(parts) + "\n"


def _object(schema: Schema) -> Schema:
    """Return the mapping among the forms that a setting can be written in."""
    forms = [schema, *schema.get("anyOf", ())]
    return next((form for form in forms if "properties" in form), schema)


def _described(schema: Schema) -> Iterator[str]:
    lead, meanings = _docstring(schema.get("description", ""))
    if lead:
        yield html.escape(lead, quote=False)
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, setting in schema["properties"].items():
        default = "" if "default" not in setting else f"`{_short(setting['default'])}`"
        meaning = meanings.get(key, "" if "properties" in setting else setting.get("description", ""))
        rows.append(f"| `{key}` | {_kind(setting)} | {default} | {_cell(meaning)} |")
    yield "\n".join(rows)


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return what a docstring says first, and what it says of each attribute."""
    lead, _, rest = text.partition("Attributes:")
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in rest.splitlines():
        if found := re.match(r"\s*((?:\w+, )*\w+): (.*)", line):
            names = found[1].split(", ")
            meanings |= dict.fromkeys(names, found[2])
        elif line.strip():
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
    return " ".join(lead.split()), meanings


def _kind(schema: Schema) -> str:
    if "$ref" in schema:
        return f"[{(name := schema['$ref'].rpartition('/')[2])}](#{name.lower()})"
    if "properties" in schema and "title" in schema:
        return f"[{schema['title']}](#{schema['title'].lower().replace(' ', '-')})"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if forms := schema.get("anyOf") or schema.get("allOf"):
        return " or ".join(dict.fromkeys(_kind(form) for form in forms))
    limits = [f"{sign} {schema[name]:g}" for name, sign in LIMITS.items() if name in schema]
    items = f" of {_kind(schema['items'])}" if isinstance(schema.get("items"), dict) else ""
    return " ".join([str(schema.get("type", "anything")) + items, *limits])


def _short(value: Any) -> str:
    return "as below" if isinstance(value, dict) else "none" if value is None else str(value) or '""'


def _cell(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for child, subcommand in sorted(getattr(command, "commands", {}).items()):
        if getattr(subcommand, "commands", None):
            yield from _commands(subcommand, f"{name} {child}")
        elif not subcommand.hidden:
            yield f"{name} {child}", subcommand


def _parameters(command: Any) -> str:
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        names = ", ".join(f"`{word}`" for word in (*parameter.opts, *parameter.secondary_opts))
        shown = names if parameter.param_type_name == "option" else f"`{parameter.metavar or parameter.name.upper()}`"
        default = (
            "" if parameter.default in (None, False, ()) or callable(parameter.default) else f"`{parameter.default}`"
        )
        rows.append(f"| {shown} | {default} | {_cell(getattr(parameter, 'help', None) or '')} |")
    return "\n".join(["| argument or option | default | meaning |", "|---|---|---|", *rows]) if rows else ""


if __name__ == "__main__":
    for name, text in reference().items():
        file = Path(__file__).parent / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
