"""Operating curves of the drift check on simulated engines: `python benchmarks/drift.py`.

Passes of stationary engines, and the same passes on boards that drift, are judged by the product's own code, each alone
and in groups of as many as a publishable experiment has. Writes docs/measurements/data/drift.json, from which
`python docs/pictures.py` draws the picture of docs/measurements/drift.md, and prints that page's table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

from make.traffic import LENGTHS, KnownJoules, closed_loop  # noqa: E402

from wattdock.analysis.drift import Drift, drift  # noqa: E402
from wattdock.analysis.measured import Measured  # noqa: E402
from wattdock.audit.procedure import MAX_DRIFT, drift_within_passes  # noqa: E402
from wattdock.config import ExperimentConfig, WorkloadSpec  # noqa: E402
from wattdock.records import RestartRecord  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wattdock.audit.check import AuditInput

FILE = REPO / "docs/measurements/data/drift.json"
IN_FLIGHT, SECONDS = (1, 8, 64, 512), (20, 60, 120, 300, 600)
TRUE_DRIFTS = (0.0, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.03)
# Three restarts of three passes.
PASSES = 9
RESTART = RestartRecord(0, started_utc="2026-01-01T00:00:00.000+00:00")


def drifts(lengths: str, in_flight: int, seconds: float, seed: int) -> list[Drift]:
    """Return what is found in one pass at each true drift, which is that of the part that is judged."""
    loop = closed_loop(seconds, np.random.default_rng(seed), in_flight=in_flight, lengths=lengths)
    config = ExperimentConfig(backend="fake", workload=WorkloadSpec(batch_size=in_flight))
    found = []
    part = 1.0
    for true in TRUE_DRIFTS:
        energy = KnownJoules(loop.drifting(true / part), np.random.default_rng(seed))
        seen = drift(Measured(config, (), ("GPU",), energy=energy), RESTART, loop.record)
        part = (seen.duration_s or loop.record.span.duration_s) / loop.record.span.duration_s
        found.append(seen)
    return found


def shares(groups: Sequence[Sequence[Drift]]) -> list[float]:
    """Return which shares of groups of passes the audit accepts, and which it refuses as shown to drift."""
    procedures = [SimpleNamespace(procedure=SimpleNamespace(drift=group)) for group in groups]
    statuses = [drift_within_passes(cast("AuditInput", each)).status for each in procedures]
    return [statuses.count(status) / len(groups) for status in ("pass", "fail")]


def row(case: tuple[str, int, int], groups: int) -> dict[str, Any]:
    """Return one case's shares at each true drift, of single passes and of groups."""
    lengths, in_flight, seconds = case
    passes = [drifts(lengths, in_flight, seconds, seed) for seed in range(groups * PASSES)]
    by_drift = list(zip(*passes, strict=True))
    halves = [seen.half95 for seen in by_drift[0] if seen.half95 is not None]
    return {
        "lengths": lengths,
        "in_flight": in_flight,
        "seconds": seconds,
        "half95_median": round(float(np.median(halves)), 5) if halves else None,
        "pass": [shares([[seen] for seen in column]) for column in by_drift],
        "experiment": [
            shares([column[at : at + PASSES] for at in range(0, len(column), PASSES)]) for column in by_drift
        ],
    }


def main() -> None:
    """Judge all cases, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=20, help="experiments of each case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    # Long ones first.
    cases = sorted(product(LENGTHS, IN_FLIGHT, SECONDS), key=lambda case: -case[2])
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(row, cases, [options.groups] * len(cases)))
    rows.sort(key=lambda each: (list(LENGTHS).index(each["lengths"]), each["in_flight"], each["seconds"]))
    about = {"limit": MAX_DRIFT, "true_drifts": TRUE_DRIFTS, "passes": PASSES, "groups": options.groups}
    lines = ",\n".join(json.dumps(each) for each in rows)
    FILE.write_text(f'{json.dumps(about)[:-1]}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    sys.stdout.write("\n".join(table(rows)) + "\n")


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each case: the interval of one pass, and what becomes of experiments without and with drift."""
    yield "| lengths | in flight | pass, s | half of an interval | no drift: accepted, refused | 2 %: the same |"
    yield "|---|---|---|---|---|---|"
    at = TRUE_DRIFTS.index(2 * MAX_DRIFT)
    for each in rows:
        half = "–" if each["half95_median"] is None else f"{each['half95_median']:.2%}"
        (still, refused), (accepted, shown) = each["experiment"][0], each["experiment"][at]
        cells = [each["lengths"], each["in_flight"], each["seconds"], half]
        yield (
            "| " + " | ".join([*map(str, cells), f"{still:.0%}, {refused:.0%}", f"{accepted:.0%}, {shown:.0%}"]) + " |"
        )


if __name__ == "__main__":
    main()
