"""Start a backend's runner on this machine, and make sure that it ends.

In: a backend, GPUs, the user's choice of launcher. Out: a `Launcher`, whose `LaunchedRunner` serves on a private Unix
socket until it is stopped or this process ends, however it ends. Must not know: gRPC, what runners measure, results.

A new launcher (Pyxis, a Slurm job step) is a file beside `process.py`, `docker.py` and `apptainer.py` and its name in
the setting `launcher`; `protocol.py` says what to write in it. It starts runners on the coordinator's own host, because
meter, clock and socket are this machine's. Under Slurm `wattdock run` is itself a command of the job, on each node
(`fleet`).

A new backend is a folder `runners/NAME` that holds `wattdock_NAME.py`; it is found without being registered, and
docs/how-to/adding-a-backend.md says what to write in it. Its image is `docker/NAME.Dockerfile`. Images have a door of
their own, `wattdock.launch.images`.
"""

from wattdock.launch.choice import choose_launcher
from wattdock.launch.engine import NoContainersError, reap
from wattdock.launch.launcher_choice import LauncherChoice
from wattdock.launch.protocol import LaunchedRunner, Launcher, LaunchSpec
from wattdock.launch.runners import backends, find_runner

__all__ = [
    "LaunchSpec",
    "LaunchedRunner",
    "Launcher",
    "LauncherChoice",
    "NoContainersError",
    "backends",
    "choose_launcher",
    "find_runner",
    "reap",
]
