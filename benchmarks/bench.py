"""What wattdock itself costs: start-up, the wire, and energy arithmetic over long timelines.

Prints a table and keeps it in docs/measurements/. Absolute times hold for the machine they were taken on only.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wattdock import __version__, wire
from wattdock.client import RunnerClient
from wattdock.config.experiment import PromptSpec, WorkloadSpec
from wattdock.energy import span_energy
from wattdock.launch.process import ProcessLauncher
from wattdock.launch.protocol import LaunchSpec
from wattdock.meter.timeline import GpuTimeline, Ticks
from wattdock.prompts import load_prompts
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "docs" / "measurements"
NS_PER_S = 1_000_000_000
Row = tuple[str, str, str]


def timed_ms(call: Callable[[], object], *, repeats: int) -> tuple[float, float, float]:
    """Return minimum, median and maximum duration of `call` in milliseconds."""
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begun) * 1e3)
    return min(taken), statistics.median(taken), max(taken)


def row(name: str, times_ms: tuple[float, float, float]) -> Row:
    """Return one line of the table."""
    low, median, high = times_ms
    return name, f"{median:.2f} ms", f"{low:.2f} … {high:.2f} ms"


def bench_start_up() -> list[Row]:
    """How long a person waits for `--help`, beside an interpreter that does nothing."""
    wattdock = [str(Path(sys.executable).with_name("wattdock")), "--help"]
    empty = [sys.executable, "-c", "pass"]
    return [
        row("python -c pass", timed_ms(lambda: subprocess.run(empty, check=True), repeats=10)),
        row(
            "wattdock --help",
            timed_ms(lambda: subprocess.run(wattdock, check=True, stdout=subprocess.DEVNULL), repeats=10),
        ),
    ]


def bench_wire() -> list[Row]:
    """Launch, round trip and bulk transfer with the fake backend in a real runner process."""
    prompts = load_prompts(
        PromptSpec(source="synthetic", input_tokens=1000), seed=0, pass_index=0, count=250, vocab_size=32_000
    )
    with tempfile.TemporaryDirectory() as scratch:
        runner_dir = REPO / "tests" / "runners" / "fake"
        spec = LaunchSpec("fake", runner_dir, Path(scratch) / "log")
        (Path(scratch) / "config.json").write_text("{}")
        begun = time.perf_counter()
        with ProcessLauncher(Path(sys.executable)).launch(spec) as runner, RunnerClient(runner) as client:
            client.wait_ready(30)
            ready_ms = (time.perf_counter() - begun) * 1e3
            client.load(
                pb.LoadRequest(model_path=scratch, engine_args_json='{"step_s": 0.0}', dtype="auto"),
                timeout_s=30,
                progress=lambda _: None,
            )
            load = wire.workload(
                WorkloadSpec(batch_size=250, max_output_tokens=1),
                ignore_eos=True,
                min_requests=250,
                seed=0,
                settle_s=0,
                min_duration_s=None,
            )

            def send() -> None:
                client.generate(load, prompts, silence_s=30, stall_s=30, heartbeat=lambda _: None)

            size = sum(message.ByteSize() for message in wire.generate_requests(load, prompts))
            return [
                ("process launch → first reply", f"{ready_ms:.0f} ms", "1 run"),
                row("clock check (5 round trips)", timed_ms(client.check_clock, repeats=50)),
                row(f"pass of 250 prompts, {size / 1e6:.2f} MB, 1 token each", timed_ms(send, repeats=10)),
            ]


def bench_energy() -> list[Row]:
    """Joules of a 20 s span out of an hour of one GPU's counter."""
    at_ns = np.arange(0, 3600 * NS_PER_S, NS_PER_S // 10, dtype=np.int64)
    ticks = Ticks(at_ns - 4_000_000, at_ns - 1_000_000, at_ns, at_ns + 3_000_000, at_ns // 1_000_000 * 500)
    gpu = GpuTimeline("GPU-x", "counter", ticks, period_s=0.1)
    times = timed_ms(lambda: span_energy(gpu, 1800 * NS_PER_S, 1820 * NS_PER_S), repeats=20)
    return [row("energy of one span, one hour of one GPU", times)]


def main() -> None:
    """Run every benchmark, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-save", action="store_true", help="print only")
    save = not parser.parse_args().no_save
    rows = [*bench_start_up(), *bench_wire(), *bench_energy()]
    now = datetime.now(UTC)
    lines = [
        f"# What wattdock {__version__} itself costs",
        "",
        f"`make bench` on {now:%Y-%m-%d}, {os.cpu_count()} CPUs, Python {platform.python_version()}, no GPU.",
        "",
        "| what | median | range |",
        "|---|---|---|",
        *(f"| {name} | {median} | {spread} |" for name, median, spread in rows),
        "",
    ]
    sys.stdout.write("\n".join(lines))
    if save:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "bench.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
