"""What a report costs in time and size: over 50 runs with all their timelines, and over 1,000 results."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path

from overheads import Row, aim

from wattdock.launch.runners import REPO

sys.path.append(str(REPO / "tests"))

from make.stored import store_golden

RECORDED = [f"h200-{backend}-{batch}" for backend in ("pytorch", "vllm") for batch in (32, 128)]
RUNS, RESULTS = 50, 1_000
# Seconds and megabytes, by results.
MOST_S, MOST_MB = {RESULTS: 5}, {RUNS: 10, RESULTS: 3}


def reports() -> list[Row]:
    """Return time and size of both."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for count in (RUNS, RESULTS):
            folder = Path(scratch, str(count))
            store_many(folder, count)
            page = folder.with_suffix(".html")
            begun = time.perf_counter()
            command: list[str | Path] = [sys.executable, "-m", "wattdock", "report", folder, "-o", page]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            took_s, size_mb = time.perf_counter() - begun, page.stat().st_size / 1e6
            what = f"report over {count:,} results"
            rows.append(Row(what, f"{took_s:.1f} s", "1 run", aim(MOST_S.get(count), "s", took_s)))
            rows.append(Row(f"{what}, size", f"{size_mb:.1f} MB", "1 page", aim(MOST_MB[count], "MB", size_mb)))
    return rows


def store_many(folder: Path, count: int) -> None:
    """Store recorded results of an H200 again and again, each as an experiment of its own."""
    recorded = store_golden(folder.with_suffix(".recorded"), *RECORDED)
    for number, source in zip(range(count), cycle(recorded), strict=False):
        document = json.loads((source / "result.json").read_text())
        document["experiment_id"], document["study"] = f"{number:064x}", None
        document["config"]["name"] = f"experiment {number}"
        copy = folder / f"20260101T000000-{number:08x}"
        for path in (path for path in source.rglob("*") if path.is_file()):
            target = copy / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.name == "result.json":
                target.write_text(json.dumps(document))
            else:
                target.symlink_to(path)
