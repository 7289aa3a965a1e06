"""How far the energy counter trails the load: load steps by one process, the meter in another.

    python benchmarks/counter_lag.py RUNNER_PYTHON [--pulses 40]

RUNNER_PYTHON has torch and sees the GPU. Each step's true instant is the host's, taken just before the first kernel is
launched on an idle GPU, or just after the device has drained. Its apparent instant is where the counter's course before
meets its course after. A power overshoot at the start of a load shows as an early start, so two loads are used.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np

from wattdock.energy import MJ_PER_J, NS_PER_S
from wattdock.meter.instants import tick_instants
from wattdock.meter.nvml import NvmlMeter

if TYPE_CHECKING:
    from wattdock.meter.timeline import Ticks

# Runs in the other process: prints [kind, on_ns, off_ns] for each pulse.
PULSES = """
import json, random, sys, time, torch
random.seed(0)
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
b, big = torch.empty_like(a), torch.empty(2**30, device="cuda", dtype=torch.uint8)
other = torch.empty_like(big)
kinds = {"matmul": lambda: torch.mm(a, a, out=b), "copy": lambda: other.copy_(big)}
def timed(work, count):
    torch.cuda.synchronize(); begun = time.monotonic_ns()
    for _ in range(count): work()
    torch.cuda.synchronize()
    return begun, time.monotonic_ns()
counts = {}
for kind, work in kinds.items():
    timed(work, 20); begun, ended = timed(work, 100)
    counts[kind] = max(1, int(100 * 0.6e9 / (ended - begun)))
for _ in range(int(sys.argv[1])):
    for kind, work in kinds.items():
        time.sleep(random.uniform(0.6, 0.8))
        print(json.dumps([kind, *timed(work, counts[kind])]), flush=True)
time.sleep(1)
"""
# Where each course is taken from, in seconds from the step.
BEFORE, AFTER = (-0.45, -0.02), (0.12, 0.55)


def apparent_minus_true_s(ticks: Ticks, step_ns: int) -> float | None:
    """Return where the two courses meet, in seconds after `step_ns`; None where there is no clear step."""
    at_s, _, _ = tick_instants(ticks, step_ns)
    energy_j = (ticks.energy_mj - ticks.energy_mj[0]) / MJ_PER_J
    (slope_a, level_a), (slope_b, level_b) = (
        np.polyfit(at_s[inside], energy_j[inside], 1)
        for inside in ((at_s > low) & (at_s < high) for low, high in (BEFORE, AFTER))
    )
    return None if abs(slope_a - slope_b) < 50 else float((level_a - level_b) / (slope_b - slope_a))


def main() -> None:
    """Run the pulses under the meter and print the lag per kind of load and of step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runner_python")
    parser.add_argument("--pulses", type=int, default=40)
    arguments = parser.parse_args()
    meter = NvmlMeter()
    meter.start()
    command = [arguments.runner_python, "-c", PULSES, str(arguments.pulses)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    gpu = next(iter(meter.stop().gpus.values()))
    steps: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        kind, on_ns, off_ns = json.loads(line)
        for step, at_ns in (("on", on_ns), ("off", off_ns)):
            if (lag_s := apparent_minus_true_s(gpu.ticks, at_ns)) is not None:
                steps.setdefault(f"{kind} {step}", []).append(lag_s * 1e3)
    reads_ms = (gpu.ticks.after_end_ns - gpu.ticks.after_start_ns) / NS_PER_S * 1e3
    sys.stdout.write(
        f"period {1e3 * (gpu.period_s or 0):.2f} ms, read {np.median(reads_ms):.2f} ms median, "
        f"{np.quantile(reads_ms, 0.99):.2f} ms p99, busy {gpu.busy_fraction:.1%}\n\n"
        "| step | n | apparent − true, mean | standard deviation | min … max |\n|---|---|---|---|---|\n"
    )
    for name, lags_ms in steps.items():
        sys.stdout.write(
            f"| {name} | {len(lags_ms)} | {statistics.mean(lags_ms):+.1f} ms | {statistics.stdev(lags_ms):.1f} ms | "
            f"{min(lags_ms):+.1f} … {max(lags_ms):+.1f} ms |\n"
        )


if __name__ == "__main__":
    main()
