"""What a report costs in time and size: over 50 runs with all their timelines, and over 1,000 results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.launch.runners import REPO
from wattdock.metering.timeline import GpuTimeline, Series, Ticks, Timeline
from wattdock.records import write_restart
from wattdock.records.restart import RestartRecord

if TYPE_CHECKING:
    from overheads import Row

NS_PER_S = 1_000_000_000
RUNS, RESULTS = 50, 1_000
GPUS, PASS_S, MOST_MB = 8, 120, 10


def reports() -> list[Row]:
    """Return time and size of both; a page of 50 runs that is larger than promised ends the benchmarks."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for count in (RUNS, RESULTS):
            folder = Path(scratch) / str(count)
            store_many(folder, count)
            page = folder.with_suffix(".html")
            begun = time.perf_counter()
            command: list[str | Path] = [sys.executable, "-m", "wattdock", "report", folder, "-o", page]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            took_s, size_mb = time.perf_counter() - begun, page.stat().st_size / 1e6
            rows.append((f"report over {count:,} results", f"{took_s:.1f} s", f"{size_mb:.1f} MB"))
            if count == RUNS and size_mb > MOST_MB:
                raise SystemExit(f"a report of {RUNS} runs is {size_mb:.1f} MB; {MOST_MB} MB are promised")
    return rows


def store_many(folder: Path, count: int) -> None:
    """Store results of eight GPUs and two restarts, two minutes of a pass each, that share one timeline's bytes."""
    document = json.loads((REPO / "tests/data/result.json").read_text())
    uuids = [f"GPU-{at:08d}-0000-0000-0000-000000000000" for at in range(GPUS)]
    _spread(document, uuids)
    restarts = folder / ".restarts"
    restarts.mkdir(parents=True)
    for number, record in enumerate(_restarts(document, uuids)):
        write_restart(restarts / str(number), record)
    for number in range(count):
        document["experiment_id"] = f"{number:064x}"
        document["config"]["name"] = f"experiment {number}"
        document["config"]["workload"]["batch_size"] = 1 + number % 64
        document["performance"]["output_tokens_per_s"] = 100.0 + number
        own = folder / f"20260101T000000-fake-{number:08x}"
        own.mkdir()
        (own / "result.json").write_text(json.dumps(document))
        shutil.copytree(restarts, own / "restarts", copy_function=os.link)


def _spread(document: dict[str, Any], uuids: list[str]) -> None:
    """Make the sample one of several GPUs, its passes two minutes long each."""
    environment, [gpu] = document["environment"], document["environment"]["host_gpus"]
    environment["host_gpus"] = [gpu | {"uuid": uuid, "index": at} for at, uuid in enumerate(uuids)]
    environment["gpu_uuids"], environment["gpu_count"] = uuids, len(uuids)
    document["study"] = None
    total_j = document["energy"]["total_j"]
    document["energy"]["per_gpu_j"] = dict.fromkeys(uuids, total_j / len(uuids))
    at_ns = 0
    for span in sorted(document["spans"], key=lambda one: (one["restart"], one["start_ns"])):
        length_ns = PASS_S * NS_PER_S if span["pass"] is not None else span["end_ns"] - span["start_ns"]
        span["start_ns"], span["end_ns"] = at_ns, at_ns + length_ns
        at_ns += length_ns


def _restarts(document: dict[str, Any], uuids: list[str]) -> list[RestartRecord]:
    made = []
    for restart in sorted({span["restart"] for span in document["spans"]}):
        own = [span for span in document["spans"] if span["restart"] == restart]
        start_ns, end_ns = own[0]["start_ns"], own[-1]["end_ns"]
        gpus = {uuid: _gpu(uuid, start_ns, end_ns, seed) for seed, uuid in enumerate(uuids)}
        made.append(RestartRecord(restart, timeline=Timeline("nvml", start_ns, end_ns, gpus)))
    return made


def _gpu(uuid: str, start_ns: int, end_ns: int, seed: int) -> GpuTimeline:
    """Return a GPU whose power wanders, its counter changing every 100 ms and its power read every 50 ms."""
    generator = np.random.default_rng(seed)
    ticks_ns = np.arange(start_ns, end_ns, NS_PER_S // 10)
    energy_mj = np.cumsum(generator.uniform(8_000, 70_000, ticks_ns.size)).astype(np.int64)
    before_start, before_end, after_start, after_end = (ticks_ns + at * 1_000_000 for at in range(4))
    ticks = Ticks(before_start, before_end, after_start, after_end, energy_mj)
    reads_ns = np.arange(start_ns, end_ns, NS_PER_S // 20)
    power = Series(reads_ns, generator.uniform(80, 700, reads_ns.size))
    return GpuTimeline(uuid, "counter", ticks, {"power_w": power})
