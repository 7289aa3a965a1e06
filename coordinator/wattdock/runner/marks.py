"""Read what a command's processes mark while it runs: spans, steps and work, a file of each process in one folder.

`spans/wattdock_spans.py` writes them: a line is a JSON array, ["span", name, start_ns, end_ns, n], ["step", at_ns, n]
or ["work", at_ns, {unit: amount}], instants by CLOCK_MONOTONIC. A process that was killed leaves a line cut off.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.errors import RunnerError
from wattdock.opening import open_data
from wattdock.records import passes
from wattdock.text import from_json

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

STEPS = "steps"
# Most marks of a command and most names: beyond, it is told to mark larger parts.
MOST_MARKS, MOST_NAMES = 1_000_000, 64
# Most separate spans of a name that are kept; beyond, those closer than a meter resolves become one. 64 names of
# as many are 8 MB of a record's JSON, half its limit; the energy of as many spans takes 50 ms a GPU and restart.
MOST_SPANS, CLOSE_NS = 4_000, 1_000_000
# Largest amount of a mark: the sum of as many as there may be has room in 64 bits.
MOST_AT_ONCE = 2**43
# Bytes that are read of a file at a time.
CHUNK_BYTES = 1 << 22


@dataclass
class _Process:
    """Marks of one process, and how far its file was read.

    Attributes:
        rank: Its number among the command's processes, if it has one.
        begin_ns, latest_ns: When it began, if it says so, and its last mark.
    """

    read_bytes: int = 0
    cut: bytes = b""
    rank: int | None = None
    begin_ns: int | None = None
    latest_ns: int = 0
    steps: list[tuple[int, int]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)


class Marks:
    """What was marked so far in a folder.

    Attributes:
        first_ns, latest_ns: Instants of the first mark and of the last; 0 without one.
        malformed: Lines that are no marks.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._processes = folder, dict[str, _Process]()
        self._work = defaultdict[str, list[tuple[int, int]]](list)
        self._spans = defaultdict[str, list[tuple[int, int]]](list)
        self._done = Counter[str]()
        self._count = self.first_ns = self.latest_ns = self.malformed = 0

    def read(self) -> None:
        """Read what was added since the last time.

        Raises:
            RunnerError: There are too many marks, or a file cannot be read.
        """
        try:
            for path in sorted(self._folder.glob("*.jsonl")):
                process = self._processes.setdefault(path.name, _Process())
                with open_data(path) as file:
                    file.seek(process.read_bytes)
                    while chunk := file.read(CHUNK_BYTES):
                        process.read_bytes += len(chunk)
                        *lines, process.cut = (process.cut + chunk).split(b"\n")
                        self._take(process, lines)
        except OSError as error:
            raise RunnerError(f"the command's marks cannot be read: {error.filename}: {error.strerror}") from error

    def add_step(self, at_ns: int) -> None:
        """Add a step that the command's output shows."""
        self._mark(self._processes.setdefault("", _Process()), "step", at_ns, 1)

    def units(self) -> dict[str, int]:
        """Return how much of each kind of work was done; of processes at work together, steps are those of one."""
        steps = self._common(STEPS)
        return dict(self._done) | ({STEPS: steps} if steps else {})

    def counting(self, unit: str) -> int:
        """Return how many processes' counts of a unit are added up."""
        return (
            len(self._leading(unit)) if unit == STEPS else sum(each.done[unit] > 0 for each in self._processes.values())
        )

    def repeated(self, unit: str) -> int:
        """Return how many ranks count work of a unit in several processes: loaders of data, or a rank begun anew."""
        counting = Counter(process.rank for process in self._processes.values() if process.done[unit])
        return sum(count > 1 for rank, count in counting.items() if rank is not None)

    def series(self, unit: str) -> passes.TokenSeries:
        """Return how work of one unit grew."""
        parts = self._work.get(unit, [])
        if unit == STEPS:
            parts = [mark for process in self._leading(STEPS) for mark in process.steps]
        at_ns, amounts = np.array(sorted(parts), dtype=np.int64).reshape(-1, 2).T
        return passes.TokenSeries(at_ns, np.cumsum(amounts))

    def marked(self) -> tuple[passes.Marked, ...]:
        """Return the spans of each name, in order of their first."""
        found = sorted(self._spans.items(), key=lambda item: min(item[1]))
        return tuple(passes.Marked(name, self._common(f"span {name}"), _union(spans)) for name, spans in found)

    def _common(self, name: str) -> int:
        """Return how many of what ranks share there were."""
        return sum(process.done[name] for process in self._leading(name))

    def _leading(self, name: str) -> list[_Process]:
        """Return the process that counted most of a name, of each group of processes at work together."""
        found: list[_Process] = []
        until_ns = -1
        counting = (process for process in self._processes.values() if process.done[name])
        for process in sorted(counting, key=lambda process: process.begin_ns or 0):
            if (process.begin_ns or 0) > until_ns:
                # Ranks share their steps; a command that runs one script after the other makes those of both.
                found.append(process)
            elif process.done[name] > found[-1].done[name]:
                found[-1] = process
            until_ns = max(until_ns, process.latest_ns)
        return found

    def _take(self, process: _Process, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._count += 1
            if self._count > MOST_MARKS or len(self._spans) + len(self._work) > MOST_NAMES:
                many = f"more than {MOST_MARKS:,} marks, or {MOST_NAMES} names"
                raise RunnerError(f"the command makes {many}", "mark larger parts, such as epochs or 100 steps")
            try:
                if not isinstance(mark := from_json(line), list):
                    raise TypeError(line)
                self._mark(process, *mark)
            except (ValueError, TypeError, AttributeError, IndexError):
                self.malformed += 1

    def _mark(self, process: _Process, kind: object, *rest: Any) -> None:
        """Take one mark; kinds that later versions write are left out.

        Raises:
            ValueError, TypeError, AttributeError: It is none.
        """
        if kind == "process":
            process.rank, process.begin_ns = (number if isinstance(number, int) else None for number in rest[2:4])
        elif kind == "span":
            name, start_ns, end_ns, n = rest
            _require_counts(n)
            _require_counts(start_ns, end_ns - start_ns, most=passes.MAX_NS)
            self._spans[_name(name)].append((start_ns, end_ns))
            process.done[f"span {name}"] += n
            self._saw(process, start_ns, end_ns)
        elif kind == "step":
            at_ns, n = rest
            _require_counts(n)
            _require_counts(at_ns, most=passes.MAX_NS)
            process.steps.append((at_ns, n))
            process.done[STEPS] += n
            self._saw(process, at_ns)
        elif kind == "work":
            at_ns, amounts = rest
            _require_counts(*amounts.values())
            _require_counts(at_ns, most=passes.MAX_NS)
            if steps := amounts.pop(STEPS, 0):
                # Ranks share their steps, however the script spells them.
                self._mark(process, "step", at_ns, steps)
            for unit, amount in amounts.items():
                self._work[_name(unit)].append((at_ns, amount))
                self._done[unit] += amount
                process.done[unit] += amount
            self._saw(process, at_ns)

    def _saw(self, process: _Process, *instants_ns: int) -> None:
        self.first_ns = min(self.first_ns or instants_ns[0], *instants_ns)
        process.latest_ns = max(process.latest_ns, *instants_ns)
        self.latest_ns = max(self.latest_ns, process.latest_ns)


def _require_counts(*numbers: object, most: int = MOST_AT_ONCE) -> None:
    """Check that all are whole numbers from 0 to `most`.

    Raises:
        ValueError: One is not.
    """
    if not all(type(number) is int and 0 <= number <= most for number in numbers):
        raise ValueError(str(numbers))


def _name(name: object) -> str:
    """Return a name as results may hold it."""
    if not isinstance(name, str) or not 0 < len(name) <= 64 or not name.isprintable():
        raise ValueError(str(name))
    return name


def _union(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return where any of the spans was, without overlap; nothing where that are too many places."""
    found: list[tuple[int, int]] = []
    for close_ns in (0, CLOSE_NS):
        found = []
        for start_ns, end_ns in sorted(spans):
            if found and start_ns <= found[-1][1] + close_ns:
                found[-1] = (found[-1][0], max(found[-1][1], end_ns))
            else:
                found.append((start_ns, end_ns))
        if len(found) <= MOST_SPANS:
            return tuple(found)
    return ()
