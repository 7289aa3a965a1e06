"""What a container costs beside a process: until the first reply, and in throughput.

Needs a Docker engine with the PyTorch image, and the PyTorch environment; without either it says so and measures
nothing. Prints a table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from figures import table
from overheads import Row

from wattdock.config import ContainerSpec
from wattdock.errors import PreflightError
from wattdock.host import Machine
from wattdock.launch.docker import create_and_start, launch
from wattdock.launch.engine import Image, connect, find_image
from wattdock.launch.protocol import LaunchSpec
from wattdock.runner.client import RunnerClient
from wattdock.version import __version__

REPO = Path(__file__).resolve().parents[1]
WATTDOCK = Path(sys.executable).with_name("wattdock")
LAUNCHES, PAIRS = 5, 3


def bench_launch(image: Image, scratch: Path) -> list[Row]:
    """How long until a runner in a container answers, and how much of that any container of its image would take."""
    floor_ms, started_ms, ready_ms = [], [], []
    for number in range(LAUNCHES):
        floor_ms.append(bare_start_ms(image))
        spec = LaunchSpec("pytorch", REPO / "runners" / "pytorch", scratch / f"{number}.log")
        begun_s = time.perf_counter()
        with (
            launch(spec, image=image, cache=scratch / "cache", limits=ContainerSpec()) as runner,
            RunnerClient(runner) as client,
        ):
            started_ms.append((time.perf_counter() - begun_s) * 1e3)
            client.wait_ready(60)
            ready_ms.append((time.perf_counter() - begun_s) * 1e3)
    return [
        row("create and start of a bare container (the engine's floor)", floor_ms, "ms"),
        row("container launch → started", started_ms, "ms"),
        row("container launch → first reply", ready_ms, "ms"),
    ]


def bare_start_ms(image: Image) -> float:
    """Time the engine's create and start of the same image with nothing asked for but no network."""
    with closing(connect(image.engine.address)) as client:
        begun_s = time.perf_counter()
        container = create_and_start(client, image=image.id, entrypoint=["sleep", "60"], network_mode="none")
        taken_ms = (time.perf_counter() - begun_s) * 1e3
        container.remove(force=True)
    return taken_ms


def bench_throughput(scratch: Path) -> list[Row]:
    """Tokens per second of one thread in a container against one thread in a process, taken in turn."""
    speed: dict[str, list[float]] = {"docker": [], "process": []}
    for pair in range(PAIRS):
        for launcher, speeds in speed.items():
            [result] = measured(scratch / f"{launcher}-{pair}", launcher, "--min-duration-s", "10")
            speeds.append(result["performance"]["output_tokens_per_s"])
    ratios = [inside / outside for inside, outside in zip(speed["docker"], speed["process"], strict=True)]
    return [
        row("container, one thread", speed["docker"], "tokens/s"),
        row("process, one thread", speed["process"], "tokens/s"),
        row("container ÷ process", ratios, ""),
    ]


def measured(output: Path, launcher: str, *more: str) -> list[Any]:
    """Run the command on a tiny model with one thread and return its rows."""
    what = ("--backend", "pytorch", "--model", "shape:tiny-llama", "--accelerator", "cpu", "--launcher", launcher)
    small = ("--passes", "1", "--batch-size", "1", "--set", "warmup.passes=0", "--quiet", "--json")
    done = subprocess.run(
        [WATTDOCK, "run", *what, *small, *more, "--output-dir", output],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    results: list[Any] = json.loads(done.stdout)
    return results


def row(name: str, values: list[float], unit: str) -> Row:
    """Return a line of the table, its figures to three digits."""
    low, middle, high = (
        f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (min(values), median(values), max(values))
    )
    return Row(name, f"{middle} {unit}".strip(), f"{low} … {high} of {len(values)}")


def main() -> None:
    """Run every benchmark, and print the table."""
    try:
        image = find_image("wattdock-pytorch", backend="pytorch")
    except PreflightError as error:
        sys.stdout.write(f"no containers to measure: {error}\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        rows = [*bench_launch(image, scratch), *bench_throughput(scratch)]
    engine = image.engine
    sources = f"wattdock {__version__} at revision {Machine.checkout().revision}"
    machine = f"{os.cpu_count()} CPUs, docker {engine.version}, the PyTorch CPU image"
    where = f"`make bench` with {sources} on {datetime.now(UTC):%Y-%m-%d}: {machine}, a tiny model, no GPU."
    figures = table(("what", "median", "range"), [each[:3] for each in rows])
    sys.stdout.write(f"# What a container costs beside a process\n\n{where}\n\n{figures}\n")


if __name__ == "__main__":
    main()
