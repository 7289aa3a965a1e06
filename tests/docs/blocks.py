"""Fenced blocks of a page, and what stands behind their language: whether a block is run, or why not.

```sh run                    run it
```sh run needs-gpu          run it where there is one; several words may follow
```sh not-run: a reason      do not run it
```yaml file=first.yaml      write it to this file first
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FENCE = re.compile(r"^```(\w*)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN, RUN, FILE, NEEDS = "not-run: ", "run", "file=", "needs-"


@dataclass(frozen=True)
class Block:
    """A block; exactly one of the three is set.

    Attributes:
        line: Where it begins.
        needs: Words that must hold, where it is run.
        file: Name of the file that it is.
        not_run: Why it is not run.
    """

    line: int
    text: str
    needs: tuple[str, ...] | None = None
    file: str | None = None
    not_run: str | None = None


def blocks(page: Path) -> list[Block]:
    """Return the page's blocks of shell, and those that are files.

    Raises:
        ValueError: A shell block does not say whether it is run, or a block not what language it is in.
    """
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        language, said, content = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        if said and said.startswith(FILE):
            found.append(Block(line, content, file=said.removeprefix(FILE)))
        elif not language:
            raise ValueError(f"{page.name}:{line}: say which language this is, `text` for output")
        elif language == "sh":
            found.append(_shell(f"{page.name}:{line}", line, content, (said or "").strip()))
    return found


def _shell(where: str, line: int, content: str, said: str) -> Block:
    if said.startswith(NOT_RUN):
        return Block(line, content, not_run=said.removeprefix(NOT_RUN))
    word, *needs = said.split() or [""]
    if word != RUN or not all(need.startswith(NEEDS) for need in needs):
        raise ValueError(f"{where}: say `sh run`, `sh run needs-…` or `sh not-run: why`, not `sh {said}`")
    return Block(line, content, needs=tuple(need.removeprefix(NEEDS) for need in needs))
