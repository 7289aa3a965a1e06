"""Python files as the tests that read them see them; those that share this stay in one process (conftest.py)."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@cache
def nodes(file: Path) -> list[ast.AST]:
    """Return all parts of a file's syntax, outer ones first."""
    return list(ast.walk(ast.parse(file.read_text())))


@cache
def calls(file: Path) -> list[ast.Call]:
    """Return all calls in a file."""
    return [node for node in nodes(file) if isinstance(node, ast.Call)]
