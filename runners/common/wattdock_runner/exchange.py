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
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from wattdock_runner.backend import Finding
from wattdock_runner.gpus import driver_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMEOUT_S = 120.0
POLL_S = 0.05
SIZE_BYTES = 1 << 30
ROUNDS, WARM_UP_ROUNDS = 20, 5
BYTES_PER_ELEMENT = 4
BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
ADVICE = "install the backend's requirements file, or look at its log"


def exchange_findings(environ: Mapping[str, str]) -> list[Finding]:
    """Return CUDA and NCCL as this environment sees them, peer access, and a timed all-reduce over all visible GPUs.

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
        findings += [_peers(look["peers"]), all_reduce(look["count"], "cuda", SIZE_BYTES)]
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


def _peers(peers: Sequence[Sequence[int]]) -> Finding:
    """`peers[i][j]` says whether GPU i can read GPU j's memory."""
    barred = [f"{i}→{j}" for i, row in enumerate(peers) for j, able in enumerate(row) if i != j and not able]
    if barred:
        return Finding("peer access in the runner", "warn", f"not {', '.join(barred)}", "data goes through the host")
    return Finding("peer access in the runner", "ok", "between all GPUs, both ways")


def run_all(words: Sequence[Sequence[str]]) -> list[dict[str, Any]] | str:
    """Run one child per list of words, all at once; return what each said, or in one line why there is no answer."""
    with ExitStack() as stack:
        # Files, since a child that talks much would wait for ever on a pipe that nobody reads yet.
        said = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in words]
        children = [_start(stack, each, output) for each, output in zip(words, said, strict=True)]
        deadline_s = time.monotonic() + TIMEOUT_S
        # One that fails leaves the others waiting for it.
        while any(child.poll() is None for child in children) and not any(child.returncode for child in children):
            if time.monotonic() > deadline_s:
                return f"no answer within {TIMEOUT_S:.0f} s"
            time.sleep(POLL_S)
        for child, output in zip(children, said, strict=True):
            if child.returncode:
                return f"ended with code {child.returncode}: {_lines(output)[-1]}"
        # Libraries print as they like, before and after the answer.
        return [json.loads(next(line for line in _lines(output) if line.startswith("{"))) for output in said]


def _start(stack: ExitStack, words: Sequence[str], output: IO[str]) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-m", "wattdock_runner.exchange", *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN")},
    )
    stack.callback(child.wait)
    stack.callback(child.kill)
    return child


def _lines(output: IO[str]) -> list[str]:
    output.seek(0)
    return output.read().strip().splitlines() or ["no word"]


def look(torch: Any) -> dict[str, Any]:
    """Return versions, and which GPU can read which other's memory."""
    count = torch.cuda.device_count()
    peers = [[i == j or torch.cuda.can_device_access_peer(i, j) for j in range(count)] for i in range(count)]
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None
    return {"count": count, "cuda": torch.version.cuda, "nccl": nccl, "peers": peers}


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
