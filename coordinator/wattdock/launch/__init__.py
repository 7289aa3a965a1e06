"""launch."""

from wattdock.launch.docker import DockerLauncher
from wattdock.launch.engine import Containers, NoContainersError, find_containers
from wattdock.launch.environment import Variant, environment_in_use
from wattdock.launch.failures import CAUSES, DEATHS, LACKS_MEMORY, MEMORY_CAUSES, cause_of, oom_kills
from wattdock.launch.images.bases import base_name, find_base, pull_base
from wattdock.launch.images.build import Builder, build
from wattdock.launch.images.inputs import image_names, inputs_sha256
from wattdock.launch.images.labels import recipe_of
from wattdock.launch.images.lock import SETTING, LockedImage, ReadLock, lock_path, lock_sha256, read_lock, write_lock
from wattdock.launch.images.locked import Pin, find_locked, pull_locked
from wattdock.launch.images.locking import new_entries
from wattdock.launch.images.registry import push
from wattdock.launch.images.status import ImageStatus, asked_of_registry, image_status
from wattdock.launch.interpreter import check_python
from wattdock.launch.log import log_tail
from wattdock.launch.orphans import ALIVE_LABEL, OWNER_LABEL, PLACE_LABEL, place_of, reap, reap_for_ever
from wattdock.launch.process import ProcessLauncher
from wattdock.launch.protocol import STOPPED, LaunchedRunner, Launcher, LaunchSpec
from wattdock.launch.runners import backends, find_runner
from wattdock.launch.socket_folder import make_socket_folder
from wattdock.launch.variables import given_settings, runner_variables

__all__ = [
    "ALIVE_LABEL",
    "CAUSES",
    "DEATHS",
    "LACKS_MEMORY",
    "MEMORY_CAUSES",
    "OWNER_LABEL",
    "PLACE_LABEL",
    "SETTING",
    "STOPPED",
    "Builder",
    "Containers",
    "DockerLauncher",
    "ImageStatus",
    "LaunchSpec",
    "LaunchedRunner",
    "Launcher",
    "LockedImage",
    "NoContainersError",
    "Pin",
    "ProcessLauncher",
    "ReadLock",
    "Variant",
    "asked_of_registry",
    "backends",
    "base_name",
    "build",
    "cause_of",
    "check_python",
    "environment_in_use",
    "find_base",
    "find_containers",
    "find_locked",
    "find_runner",
    "given_settings",
    "image_names",
    "image_status",
    "inputs_sha256",
    "lock_path",
    "lock_sha256",
    "log_tail",
    "make_socket_folder",
    "new_entries",
    "oom_kills",
    "place_of",
    "pull_base",
    "pull_locked",
    "push",
    "read_lock",
    "reap",
    "reap_for_ever",
    "recipe_of",
    "runner_variables",
    "write_lock",
]
