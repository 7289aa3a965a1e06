"""Run the examples that train, and read what they printed and marked; for tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from unprivileged import REPO

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TRAIN = REPO / "examples/train"
# Only ends what hangs.
PATIENCE_S = 600


@dataclass(frozen=True)
class Training:
    """What a run of an example did.

    Attributes:
        ranks: The marks of each process, in the order of ranks.
    """

    code: int
    losses: list[float]
    errors: list[str]
    ranks: list[list[list[Any]]]

    def spans(self, rank: int, name: str) -> list[tuple[int, int]]:
        """Return begin and end of a rank's spans of this name, in ns."""
        return [(line[2], line[3]) for line in self.ranks[rank] if line[:2] == ["span", name]]

    def steps(self, rank: int) -> int:
        return sum(line[2] for line in self.ranks[rank] if line[0] == "step")

    def work(self, unit: str) -> int:
        """Return the work of all ranks."""
        return sum(line[2][unit] for rank in self.ranks for line in rank if line[0] == "work")


def train(command: Sequence[str | Path], marks: Path) -> Training:
    """Run an example to its end.

    Args:
        marks: A folder for what it marks, which is made.
    """
    marks.mkdir()
    env = os.environ | {"PYTHONPATH": str(REPO / "spans"), "WATTDOCK_SPANS": str(marks), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    processes = [[json.loads(line) for line in file.read_text().splitlines()] for file in marks.iterdir()]
    return Training(
        done.returncode,
        [float(loss) for loss in re.findall(r"^epoch .* loss (\S+)$", done.stdout, re.MULTILINE)],
        done.stderr.splitlines(),
        sorted(processes, key=lambda lines: lines[0][3] or 0),
    )


def lie_within(inner: list[tuple[int, int]], outer: list[tuple[int, int]]) -> bool:
    """Return whether each inner span lies within an outer one, and none in another inner one."""
    apart = all(end <= begin for (_, end), (begin, _) in pairwise(sorted(inner)))
    return apart and all(any(first <= begin and end <= last for first, last in outer) for begin, end in inner)


def marks_on_the_page(framework: str) -> str:
    """Return the example for a framework in docs/how-to/measure.md."""
    page = (REPO / "docs/how-to/measure.md").read_text(encoding="utf-8")
    (example,) = [
        text for text in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if framework in text
    ]
    return str(example)
