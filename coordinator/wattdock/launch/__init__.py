"""Start a backend's runner on this machine, and make sure that it ends.

In: a backend, GPUs, the user's choice of launcher. Out: a `Launcher`, whose `LaunchedRunner` serves on a private Unix
socket until it is stopped, or this process ends in whatever way. Must not know: gRPC, what runners measure, results.

`process` and `docker` implement `Launcher`. Another launcher, such as apptainer, is a file beside them, a branch in
`choice` and a name in the `launcher` setting. A runner always shares the coordinator's host (meter, clock, socket and
pids are this machine's), so under Slurm the coordinator runs inside the allocation. A backend is found by its folder.
Images are built, pinned and found behind a door of their own, `wattdock.launch.images`.
"""

from wattdock.launch.choice import LauncherChoice, choose_launcher
from wattdock.launch.engine import NoContainersError, find_image, reap
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
    "find_image",
    "find_runner",
    "reap",
]
