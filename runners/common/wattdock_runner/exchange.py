"""Ask child processes what torch sees of the GPUs, and how fast they exchange data.

Each child runs this file as a program, opens contexts and ends: the runner itself never opens one for a diagnosis.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock_runner.backend import Finding
from wattdock_runner.gpus import driver_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMEOUT_S = 120.0
LATE = "no answer within"
SIZE_BYTES = 1 << 30
ROUNDS, WARM_UP_ROUNDS = 20, 5
BYTES_PER_ELEMENT = 4
BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
ADVICE = "install the backend's requirements file, or look at its log"


def exchange_findings(environ: Mapping[str, str]) -> list[Finding]:
    """Return CUDA and NCCL as this environment sees them, and a timed all-reduce over all visible GPUs.

    Nothing where no GPU is to be seen. A single GPU exchanges with nobody.
    """
    shown = environ.get("CUDA_VISIBLE_DEVICES")
    if shown == "" or (shown is None and driver_version() is None):
        return []
    seen = run_all([["look"]])
    if isinstance(seen, str):
        return [Finding("CUDA in the runner", "fail", seen, ADVICE)]
    look = seen[0]
    if not look["count"]:
        advice = "a build of torch for CPUs, or a driver older than its CUDA: see the requirements file"
        return [Finding("CUDA in the runner", "fail", f"torch for CUDA {look['cuda']} sees no GPU", advice)]
    findings = [
        Finding("CUDA in the runner", "ok", str(look["cuda"])),
        Finding("NCCL in the runner", "ok", str(look["nccl"])),
    ]
    if look["count"] > 1:
        findings.append(all_reduce(look["count"], "cuda", SIZE_BYTES))
    return findings


def all_reduce(count: int, device: str, size_bytes: int) -> Finding:
    """Return the bus bandwidth of an all-reduce over `count` devices; its value begins with GB/s.

    Source: NCCL tests, PERFORMANCE.md: bus bandwidth = bytes / time × 2(n−1)/n.
    """
    with tempfile.TemporaryDirectory() as folder:
        common = [str(count), str(Path(folder) / "meet"), str(size_bytes)]
        answers = run_all([["reduce", device, str(rank), *common] for rank in range(count)])
    if isinstance(answers, str):
        advice = "try NCCL_P2P_DISABLE=1 and NCCL_DEBUG=INFO; without it no model can be split over these GPUs"
        return Finding("all-reduce", "fail", answers, advice)
    slowest_s = max(float(answer["seconds"]) for answer in answers)
    bus_gb_s = size_bytes / slowest_s * 2 * (count - 1) / count / 1e9
    value = (
        f"{bus_gb_s:.4g} GB/s bus bandwidth, {size_bytes / 1e6:.0f} MB over {count} GPUs in {slowest_s * 1e3:.3g} ms"
    )
    return Finding("all-reduce", "ok", value)


def run_all(words: Sequence[Sequence[str]]) -> list[dict[str, Any]] | str:
    """Run one child per list of words, all at once; return what each said, or in one line why there is no answer."""
    with ThreadPoolExecutor(len(words)) as pool:
        answers = list(pool.map(_run, words))
    # A child that fails leaves the others waiting for it.
    failures = sorted((answer for answer in answers if isinstance(answer, str)), key=lambda why: why.startswith(LATE))
    return failures[0] if failures else [answer for answer in answers if not isinstance(answer, str)]


def _run(words: Sequence[str]) -> dict[str, Any] | str:
    command = [sys.executable, "-m", "wattdock_runner.exchange", *words]
    environment = {**os.environ, "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN")}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{LATE} {TIMEOUT_S:.0f} s"
    lines = done.stdout.strip().splitlines() or ["no word"]
    if done.returncode:
        return f"ended with code {done.returncode}: {lines[-1]}"
    # Libraries print as they like, before and after the answer.
    answer: dict[str, Any] = json.loads(next(line for line in lines if line.startswith("{")))
    return answer


def look(torch: Any) -> dict[str, Any]:
    """Return versions, and how many GPUs torch sees."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None
    return {"count": torch.cuda.device_count(), "cuda": torch.version.cuda, "nccl": nccl}


def reduce(torch: Any, device: str, rank: int, count: int, meeting: str, size_bytes: int) -> float:
    """Return the mean seconds of one all-reduce of `size_bytes`, as rank `rank` of `count` that meet in a file."""
    distributed = importlib.import_module("torch.distributed")
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    if device == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group(BACKENDS[device], init_method=f"file://{meeting}", rank=rank, world_size=count)
    try:
        values = torch.zeros(size_bytes // BYTES_PER_ELEMENT, dtype=torch.float32, device=device)
        for _ in range(WARM_UP_ROUNDS):
            distributed.all_reduce(values)
        wait()
        distributed.barrier()
        start_s = time.monotonic()
        for _ in range(ROUNDS):
            distributed.all_reduce(values)
        wait()
        return (time.monotonic() - start_s) / ROUNDS
    finally:
        distributed.destroy_process_group()


def main(words: list[str]) -> int:
    """Do what the words say; return the exit status."""
    # By name: this package stands beside engines of every kind and needs none of them.
    torch = importlib.import_module("torch")
    if words[0] == "look":
        answer = look(torch)
    else:
        device, rank, count, meeting, size_bytes = words[1:]
        answer = {"seconds": reduce(torch, device, int(rank), int(count), meeting, int(size_bytes))}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
