"""A program in a runner's place: tries what its backend name says, inside the container, and prints one JSON line."""

from __future__ import annotations

import getpass
import importlib.util
import json
import os
import signal
import socket
import sys
from pathlib import Path

FOLDERS = "/ /etc /opt/wattdock /model /root /var /home /usr /tmp /cache /run/wattdock /dev/shm".split()
ADDRESSES = ("1.1.1.1", "10.0.0.1", "192.168.0.1", "2606:4700:4700::1111")


def main() -> None:
    what = sys.argv[sys.argv.index("--backend") + 1]
    tries = {"walls": walls, "modules": modules, "compile": compiled, "gloo": all_reduced, "forks": forks}
    print(json.dumps(tries[what]()), flush=True)


def walls() -> dict[str, object]:
    """What can be written, reached and gained."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "writable": [folder for folder in FOLDERS if can_write(folder)],
        "reachable": [address for address in ADDRESSES if routes(address)],
        "interfaces": [name for _, name in socket.if_nameindex()],
        "localhost": socket.gethostbyname(socket.gethostname()),
        "user": [os.getuid(), os.getgid(), getpass.getuser(), str(Path.home())],
        "groups": [group for group in os.getgroups() if group != os.getgid()],
        "capabilities": [int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")],
        "no_new_privileges": status["NoNewPrivs"].strip(),
        "processes": sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()),
        "mounted": sorted(
            line.split()[1]
            for line in Path("/proc/mounts").read_text().splitlines()
            if not line.split()[1].startswith(("/proc", "/sys", "/dev"))
        ),
        "offline": [os.environ[name] for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")],
        "model": {
            str(file.relative_to("/model")): file.read_text() for file in Path("/model").rglob("*") if file.is_file()
        },
    }


def modules() -> dict[str, object]:
    """Where a package that the image has comes from."""
    pip = importlib.util.find_spec("pip")
    return {"pip": pip.origin if pip else None}


def can_write(folder: str) -> bool:
    file = Path(folder, "wattdock-probe")
    try:
        file.write_text("x")
        file.unlink()
    except OSError:
        return False
    return True


def routes(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 53))
        except OSError:
            return False
    return True


def compiled() -> dict[str, object]:
    """A function compiled by torch gives what it gives uncompiled."""
    import torch

    def formula(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2 + x.relu()

    x = torch.linspace(-3, 3, 1000)
    equal = torch.allclose(torch.compile(formula)(x), formula(x))
    kernels = list(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.so"))
    return {"equal": equal, "kernels_in_cache": len(kernels) > 0}


def forks() -> dict[str, object]:
    """How many processes can be started, none of which ends by itself."""
    started = 0
    try:
        while started < 10_000:
            if not os.fork():
                signal.pause()
            started += 1
    except BlockingIOError:
        pass
    return {"started": started}


def reduce_with(rank: int, path: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method="tcp://localhost:29511", rank=rank, world_size=2)
    value = torch.tensor([float(rank + 1)])
    dist.all_reduce(value)
    Path(path, str(rank)).write_text(str(value.item()))
    dist.destroy_process_group()


def all_reduced() -> dict[str, object]:
    """Two processes add up over loopback."""
    import torch.multiprocessing as processes

    processes.spawn(reduce_with, args=("/tmp",), nprocs=2)
    return {"sums": [Path("/tmp", str(rank)).read_text() for rank in (0, 1)]}


if __name__ == "__main__":
    main()
