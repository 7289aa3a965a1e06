"""Plant faults in the rooms that meter, analyse and execute, and count those that `make test-quick` catches.

    make mutants ARGS='--count 60 --seed 1'

A fault is one change to an operator, a condition, a number or a returned value, drawn at random and put into a copy of
the repository whose tests are then run. Prints every fault that no test caught, and exits with 9 when more than
10 % survive. A fault that changes nothing that anybody can see counts as a survivor, too.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.errors import ExitCode
from wattdock.launch.runners import REPO

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOMS = ("metering", "analysis", "execution")
CAUGHT_SHARE = 0.9
# What became of a fault; a test that does not end within so many seconds is what a fault made endless.
CAUGHT, TIMED_OUT, SURVIVED = "caught", "timed out", "survived"
LIMIT_S = 600
# Neither sources nor small; what of it is needed is linked.
NOT_COPIED, LINKED = (".git", ".gpu", ".venv", "build", "results", ".*_cache", "__pycache__"), (".git", ".venv")
# Where faults show first; then everything else that is quick.
FIRST_TESTS = ("golden", *ROOMS, "checks", "publish", "reports")
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
# What is said is not what is computed, and annotations compute nothing.
LEFT_OUT = (ast.JoinedStr, ast.Raise, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Fault:
    """One change: a file, the place of the changed node in its tree, and what it says before and after."""

    file: Path
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(REPO)}:{self.line}: {self.before} → {self.after}"


def faults(room: str, draw: random.Random) -> Iterator[Fault]:
    """Yield every fault that can be planted in a room, in random order."""
    texts = {
        file: file.read_text(encoding="utf-8") for file in sorted((REPO / "coordinator/wattdock" / room).glob("*.py"))
    }
    places = [(file, at) for file, text in texts.items() for at, _ in enumerate(_computing(ast.parse(text)))]
    draw.shuffle(places)
    for file, at in places:
        tree = ast.parse(texts[file])
        node = next(itertools.islice(_computing(tree), at, None))
        before, line = ast.unparse(node), node.lineno
        if _spoil(node, has_paths="Path" in texts[file]):
            yield Fault(file, line, before, ast.unparse(node), ast.unparse(tree))


def _computing(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes that compute something, without messages, annotations and docstrings."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, LEFT_OUT):
                if isinstance(child, ast.expr | ast.stmt):
                    yield child
                yield from _computing(child)


def _spoil(node: ast.AST, *, has_paths: bool) -> bool:
    """Change a node into a wrong one, if this is a kind that can be; a slash between paths is no division."""
    if has_paths and isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return False
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        node.ops[0] = SWAPPED[type(node.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPPED:
        node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        node.value = node.value * 2 or 1
    elif isinstance(node, ast.If | ast.IfExp) and not _is_for_types(node):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        node.value = ast.Constant(None)
    else:
        return False
    ast.fix_missing_locations(node)
    return True


def _is_for_types(node: ast.If | ast.IfExp) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def outcome(fault: Fault | None) -> str:
    """Run the quick tests in a copy of the repository with this fault until one fails; return what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(REPO, copy, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
        for name in LINKED:
            (copy / name).symlink_to(REPO / name)
        if fault:
            (copy / fault.file.relative_to(REPO)).write_text(fault.source, encoding="utf-8")
        environ = {**os.environ, "PYTHONPATH": f"{copy / 'coordinator'}{os.pathsep}{copy / 'proto'}"}
        room = fault.file.parent.name if fault else ROOMS[0]
        places = [f"tests/{name}" for name in dict.fromkeys((room, *FIRST_TESTS))]
        quick = [sys.executable, "-m", "pytest", "-qx", "-n0", "-m", "not slow", "-p", "no:cacheprovider"]
        for words in ([*quick, *places], [*quick, "tests", *(f"--ignore={place}" for place in places)]):
            try:
                done = subprocess.run(words, cwd=copy, env=environ, capture_output=True, timeout=LIMIT_S, check=False)
            except subprocess.TimeoutExpired:
                return TIMED_OUT
            if done.returncode:
                return CAUGHT
    return SURVIVED


def main() -> int:
    """Plant faults, print the survivors, and return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--count", type=int, default=60, help="faults in all, equally many in each room")
    arguments.add_argument("--seed", type=int, default=1, help="of the draw")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults tried at a time")
    options = arguments.parse_args()
    draw = random.Random(options.seed)
    planted = [fault for room in ROOMS for fault in itertools.islice(faults(room, draw), options.count // len(ROOMS))]
    if outcome(None) != SURVIVED:
        raise SystemExit("make test-quick fails without any fault; mend that first")
    outcomes: Counter[str] = Counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        for fault, end in zip(planted, pool.map(outcome, planted), strict=True):
            outcomes[end] += 1
            sys.stdout.write(f"{end}: {fault}\n")
            sys.stdout.flush()
    share = 1 - outcomes[SURVIVED] / len(planted)
    counts = ", ".join(f"{count} {end}" for end, count in outcomes.items())
    sys.stdout.write(f"{len(planted)} faults, seed {options.seed}: {counts}; {share:.0%} did not survive\n")
    return ExitCode.OK if share >= CAUGHT_SHARE else ExitCode.REGRESSION


if __name__ == "__main__":
    sys.exit(main())
