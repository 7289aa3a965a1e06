"""How often 95 % intervals of windows' energy hold the truth, in recordings of simulated GPUs by the real meter.

Makes the table of docs/decisions/energy-uncertainty.md; the worlds are those of `tests/metering/energy_population.py`.
"""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from overheads import MISSED, Row

from wattdock.launch.runners import REPO

sys.path.append(str(REPO / "tests"))

import fake_nvml
from metering.energy_population import FAULTS, NO_FAULT, PROFILES, coverage, draw_windows, strata

if TYPE_CHECKING:
    from metering.energy_population import Window

# Other worlds than those of the tests.
SEED = 88_001
GPUS, WINDOWS = 8 * len(PROFILES), 34
# Shares of windows that intervals should hold: of all, and of each kind.
ALL_AIM, KIND_AIM = (0.94, 0.96), (0.92, 0.98)


def energy_windows() -> list[Row]:
    """Coverage of all windows and of each length, load and fault, with the driver's samples and with a counter only."""
    if shutil.which("gcc") is None:
        return [Row("energy of windows", "not measured", "no gcc to build simulated GPUs with")]
    # Processes of their own have no other libnvidia-ml.so.1.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        counted = pool.submit(draw, NO_FAULT, has_samples=False)
        sampled = [window for windows in pool.map(draw, FAULTS) for window in windows]
    kinds = [coverage_row(f"windows, {name}", windows, KIND_AIM) for name, windows in strata(sampled).items()]
    only = strata(counted.result()).items()
    counter_rows = [coverage_row(f"windows, counter only, {name}", windows) for name, windows in only]
    return [*kinds, coverage_row("windows, all", sampled, ALL_AIM), *counter_rows]


def draw(fault: str, *, has_samples: bool = True) -> list[Window]:
    """Return windows of GPUs with a fault."""
    seed = SEED + list(FAULTS).index(fault)
    with tempfile.TemporaryDirectory() as folder:
        library = fake_nvml.build(Path(folder))
        return draw_windows(
            library, gpus=GPUS, windows_per_gpu=WINDOWS, seed=seed, has_samples=has_samples, faults=[fault]
        )


def coverage_row(what: str, windows: list[Window], aim: tuple[float, float] | None = None) -> Row:
    """Return a kind's share of windows inside their intervals."""
    held, error_j = coverage(windows), float(np.median([abs(window.error_j) for window in windows]))
    missed = f", **{MISSED}**" if aim and not aim[0] <= held <= aim[1] else ""
    text = f"{aim[0]:.0%} to {aim[1]:.0%}{missed}" if aim else ""
    return Row(what, f"{held:.1%} covered", f"n = {len(windows):,}, median error {error_j:.2f} J", text)
