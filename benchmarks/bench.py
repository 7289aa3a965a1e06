"""What wattdock itself costs: start-up, the wire, energy arithmetic, the runner around an engine, and the meter.

    make bench ARGS='--only pytorch --quadruples 10'
    python benchmarks/bench.py --runner-python "$(which python3)" --only vllm,meter --quadruples 4 --output FILE

Prints the figures, and writes them to a file after every quadruple, so that an interrupted run loses nothing:
build/bench.md for a whole run (without --only). `first-result`, which fetches all packages anew, is measured by --only
alone; its seconds mean something only where nothing else runs. Absolute times hold only for the machine that was
measured. Exits with 9 unless every comparison holds: an unresolved one does not pass. Outside a git checkout,
WATTDOCK_REVISION names the sources' commit.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from arms import Way
from cluster_costs import fleet
from comparison import Comparison, Quantity
from covered import coverage
from energy_windows import energy_windows
from engines import CPU_SIZES, GPU_SIZES, duration_s, live_engine, tpot_p99_s
from figures import Figures, ratio_row
from first_result import first_result
from marks import marks
from metered import LEAD_S, MeterCost, run_unmetered, something_to_meter
from overheads import MISSED, energy_arithmetic, start_up, wire_costs
from paired import Claim
from reports import reports
from steps import step_record
from studies import studies
from watching import watching

from wattdock.errors import ExitCode, PreflightError, WattdockError
from wattdock.files import write_whole
from wattdock.host import GpuInventory, Machine
from wattdock.launch.runners import REPO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from comparison import Arms
    from engines import Block, LiveEngine

    from wattdock.host import Gpu
    from wattdock.records.passes import PassRecord

OVERHEADS = {
    "start-up": start_up,
    "wire": wire_costs,
    "steps": step_record,
    "marks": marks,
    "energy": energy_arithmetic,
    "energy-windows": energy_windows,
    "studies": studies,
    "reports": reports,
    "watching": watching,
    "fleet": fleet,
    "first-result": first_result,
    "coverage": coverage,
}
# Comparison → the engine it runs on.
COMPARISONS = {
    "pytorch": "pytorch",
    "pytorch-planted": "pytorch",
    "vllm": "vllm",
    "meter": "vllm",
}
# Comparison → quadruples of blocks; whether these resolve it depends on the machine's scatter.
QUADRUPLES = {"pytorch": 24, "pytorch-planted": 8, "vllm": 4, "meter": 6}
# Measured by --only alone.
ALONE = ("watching", "fleet", "first-result", "coverage")
DEFAULT = (*(name for name in OVERHEADS if name not in ALONE), "pytorch")
DEFAULT_ON_GPU = (*DEFAULT, "vllm", "meter")
LEFT_OUT_ON_CPU = (
    "what the runner around vLLM and what the meter costs: on a CPU quadruples of vLLM's blocks scatter by 3 to 16 %, "
    "which resolves neither (--only vllm,meter tries); a machine with a GPU measures both"
)
RUNNER_LIMIT, METER_LIMIT = 0.995, 0.998
DEFAULT_OUTPUT = REPO / "build/bench.md"


class Bench:
    """One run of the command.

    Args:
        options: As parsed; see `parser`.
        scratch: A folder for models' configs and logs.
    """

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self._options, self._scratch = options, scratch
        gpus = [] if options.cpu else GpuInventory.here().gpus
        if options.gpu is not None and options.gpu not in range(len(gpus)):
            raise PreflightError(f"--gpu {options.gpu}: NVML shows {len(gpus)} GPUs, numbered from 0")
        self._gpu: Gpu | None = gpus[options.gpu or 0] if gpus else None
        self._only = options.only or (DEFAULT_ON_GPU if self._gpu else DEFAULT)
        if self._gpu is None:
            # Engines whose threads wait for each other on busy cores measure the neighbours; one thread leaves room.
            os.environ["OMP_NUM_THREADS"] = "1"
        command = " ".join(["python", "benchmarks/bench.py", *options.words])
        revision = os.environ.get("WATTDOCK_REVISION") or Machine.checkout().revision or "unknown"
        self.figures = Figures(command, revision, machine(self._gpu))
        if options.only is None and self._gpu is None:
            self.figures.notes.append(LEFT_OUT_ON_CPU)
        self.claims: dict[str, list[Claim]] = {}

    def run(self) -> None:
        """Measure the selected benchmarks, cheapest first.

        Raises:
            WattdockError: A benchmark cannot be measured here; earlier figures are written.
        """
        for name, measure in OVERHEADS.items():
            if name in self._only:
                self.figures.rows += measure()
                self.save()
        for backend in ("pytorch", "vllm"):
            wanted = [name for name, on in COMPARISONS.items() if on == backend and name in self._only]
            if wanted:
                self._compare_on(backend, wanted)

    def save(self) -> None:
        """Write everything measured so far to the output file."""
        if output := self._options.output:
            output.parent.mkdir(parents=True, exist_ok=True)
            write_whole(output, self.figures.document().encode())

    def _compare_on(self, backend: str, wanted: Sequence[str]) -> None:
        size = (GPU_SIZES if self._gpu else CPU_SIZES)[backend]
        say(f"loading {size.shape} with {backend}")
        python = self._options.runner_python or REPO / "runners" / backend / ".venv/bin/python"
        if not python.exists():
            raise PreflightError(f"no interpreter at {python}; make bench makes one, --runner-python names another")
        is_given = self._options.runner_python is not None
        home = self._scratch / backend
        with live_engine(size, python=python, keep_pythonpath=is_given, gpu=self._gpu, home=home) as engine:
            ways = {Way.RUNNER, *(way for name in wanted if name in WAYS for way in WAYS[name][:2])}
            block = engine.warm_up(sorted(ways), self._options.block_s)
            for name in wanted:
                quadruples = int(self._options.quadruples or QUADRUPLES[name])
                if self._options.minutes is not None:
                    block_s = block.expected_s + (LEAD_S if name == "meter" else 0)
                    quadruples = max(2, int(60 * self._options.minutes / (4 * block_s)))
                work = f"{block.passes} × {block.requests} requests and {block.expected_s:.0f} s"
                say(f"{name}: {quadruples} quadruples, {work} per block")
                compare = self._compare_meter if name == "meter" else self._compare_ways
                compare(name, engine, block, quadruples)

    def _compare_ways(self, name: str, engine: LiveEngine, block: Block, planned: int) -> None:
        first, second, what = WAYS[name]
        quantities = [Quantity(Claim(what, RUNNER_LIMIT, planned), duration_s)]
        arms: Arms = {"A": partial(engine.run, first, block.requests), "B": partial(engine.run, second, block.requests)}
        self._compare(name, arms, Comparison(engine.description, block.requests, block.passes, quantities))

    def _compare_meter(self, name: str, engine: LiveEngine, block: Block, planned: int) -> None:
        def serve(heard: Callable[[object], bool]) -> PassRecord:
            return engine.run(Way.RUNNER, block.requests, heartbeat=heard)

        quantities = [
            Quantity(Claim("meter on / off, throughput", METER_LIMIT, planned), duration_s),
            Quantity(Claim("meter on / off, 1 / TPOT p99", METER_LIMIT, planned), tpot_p99_s),
        ]
        with something_to_meter(self._scratch) as what:
            if what is None:
                self.claims[name] = []
                self.figures.notes.append("the meter: no NVIDIA driver, and no gcc to build a stand-in for it")
                return
            cost = MeterCost()
            self.figures.meter = (what, cost)
            arms: Arms = {"A": lambda: cost.run_metered(serve), "B": lambda: run_unmetered(serve)}
            self._compare(name, arms, Comparison(engine.description, block.requests, block.passes, quantities))

    def _compare(self, name: str, arms: Arms, comparison: Comparison) -> None:
        self.claims[name] = comparison.claims
        self.figures.comparisons[name] = comparison

        def after_each() -> None:
            self.save()
            for claim in comparison.claims:
                say(" | ".join(ratio_row(claim)))

        comparison.run(arms, after_each)
        if (shortest_s := min(took_s for _, took_s, _ in comparison.blocks)) < self._options.block_s:
            for claim in comparison.claims:
                claim.void = f"a block took {shortest_s:.1f} s, less than {self._options.block_s:g}"


# Arm A, arm B, and the two in words.
WAYS = {
    "pytorch": (Way.RUNNER, Way.BARE, "runner / bare loop, PyTorch"),
    "pytorch-planted": (Way.SLOWED, Way.BARE, "bare loop with 1 % planted / bare loop, PyTorch"),
    "vllm": (Way.RUNNER, Way.BARE, "runner / bare loop, vLLM"),
}


def unmet(claims: dict[str, list[Claim]]) -> list[str]:
    """Return the comparisons without the required verdict, and their verdicts.

    A comparison has to hold; one with a planted cost has to fail.
    """
    verdicts_of = {name: [claim.verdict for claim in of_comparison] for name, of_comparison in claims.items()}
    return [
        f"{name} ({', '.join(verdicts) or 'not measured'})"
        for name, verdicts in verdicts_of.items()
        if {*verdicts} != {"fails" if name == "pytorch-planted" else "holds"}
    ]


def machine(gpu: Gpu | None) -> str:
    """Return what this machine is, in words and without its name."""
    here = Machine.here()
    gpus = f"{gpu.name}, driver {gpu.driver_version}" if gpu else "no GPU used, engines on one thread"
    return (
        f"{here.cpu_count} CPUs ({here.cpu_model or 'unknown'}), {gpus}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f} at the start"
    )


def say(line: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(f"bench: {line}\n")


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    valid, default = [*OVERHEADS, *COMPARISONS], ", ".join(DEFAULT)
    on_gpu = ", ".join(name for name in DEFAULT_ON_GPU if name not in DEFAULT)
    only = f"of {', '.join(valid)}; by default {default}, and with a GPU {on_gpu}"
    arguments.add_argument("--only", type=names(valid), help=only)
    arguments.add_argument("--quadruples", type=int, help=f"of blocks, per comparison (default: {QUADRUPLES})")
    arguments.add_argument("--minutes", type=float, help="per comparison, instead of --quadruples")
    arguments.add_argument("--block-s", type=float, default=10.0, help="least length of a block (default: 10)")
    where = arguments.add_mutually_exclusive_group()
    where.add_argument("--gpu", type=int, help="GPU by NVML's number (default: the first, if any)")
    where.add_argument("--cpu", action="store_true", help="use the CPU, even if there is a GPU")
    arguments.add_argument("--runner-python", type=Path, help="interpreter that has the backends' packages")
    arguments.add_argument(
        "--output", type=Path, help=f"file for the figures (default without --only: {DEFAULT_OUTPUT.relative_to(REPO)})"
    )
    return arguments


def names(valid: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of a comma-separated list of valid names."""

    def parse(text: str) -> tuple[str, ...]:
        parts = tuple(text.split(","))
        if unknown := [name for name in parts if name not in valid]:
            raise argparse.ArgumentTypeError(f"unknown {unknown[0]!r}; known are {', '.join(valid)}")
        return parts

    return parse


def main() -> int:
    """Run the benchmarks, write the figures, and return the exit code."""
    options = parser().parse_args()
    options.output = options.output or (DEFAULT_OUTPUT if options.only is None else None)
    options.words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            bench = Bench(options, Path(scratch))
            try:
                bench.run()
            finally:
                bench.save()
        except WattdockError as error:
            say(str(error))
            return error.exit_code
    document = bench.figures.document()
    sys.stdout.write(document)
    for row in bench.figures.rows:
        if MISSED in row.aim:
            say(f"{row.what}: {row.median}, aim {row.aim.replace('*', '')}")
    for note in bench.figures.notes:
        say(f"not measured: {note}")
    if missing := unmet(bench.claims):
        say(f"without the required verdict, and unresolved is no pass: {'; '.join(missing)}")
        return ExitCode.REGRESSION
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
