"""How often 95 % intervals of energy hold the truth where the counter's lag is not the one that `energy` assumes.

    python benchmarks/lag_coverage.py [--lags-ms 8 -8] [--gpus 72]

A simulation: the real meter over simulated GPUs in virtual time, as in tests/meter/test_energy_intervals.py. Needs gcc.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import fake_nvml
from energy_population import Window, draw_windows

WINDOWS_PER_GPU = 34
SEEDS = (1, 2, 3)


def covered(windows: list[Window]) -> str:
    """Return the share of windows whose interval holds the truth."""
    return f"{sum(window.covered for window in windows) / len(windows):.0%}"


def main() -> None:
    """Print one row per lag and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lags-ms", type=float, nargs="+", default=[8.0, -8.0])
    parser.add_argument("--gpus", type=int, default=72)
    options = parser.parse_args()
    sys.stdout.write("| lag | seed | windows | covered | on power steps | covered |\n|---|---|---|---|---|---|\n")
    with tempfile.TemporaryDirectory() as folder:
        library = fake_nvml.build(Path(folder))
        for lag_ms in options.lags_ms:
            for seed in SEEDS:
                windows = draw_windows(
                    library, gpus=options.gpus, windows_per_gpu=WINDOWS_PER_GPU, seed=seed, lag_s=lag_ms / 1e3
                )
                steps = [window for window in windows if window.aligned]
                cells = (f"{lag_ms:+g} ms", seed, len(windows), covered(windows), len(steps), covered(steps))
                sys.stdout.write(f"| {' | '.join(map(str, cells))} |\n")


if __name__ == "__main__":
    main()
