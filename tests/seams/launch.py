"""What tests reach behind the door of `launch`: a name that moves is changed here only."""

from wattdock.launch import apptainer, docker, environment, process, uv
from wattdock.launch.apptainer import image_file
from wattdock.launch.container import Bind, create_arguments, model_binds
from wattdock.launch.docker import RunnerContainer, explained
from wattdock.launch.engine import (
    BASE_NAME_LABEL,
    Engine,
    Image,
    connect,
    engine_address,
    engine_from,
    is_orphan,
    place_of,
    remove_socket_folder,
    require_socket,
)
from wattdock.launch.environment import Environment, Variant
from wattdock.launch.images import build, lock
from wattdock.launch.images.build import build_image, build_labels, run_docker
from wattdock.launch.images.lock import NOT_PUSHED, LockedImage, Pin, lock_images, write_lock
from wattdock.launch.keeper import KEEPER, descendants, end_group, memory_bytes
from wattdock.launch.packages import PackageLock, note_installed
from wattdock.launch.runners import (
    REPO,
    container_variables,
    engine_settings,
    find_python,
    process_variables,
)
from wattdock.launch.uv import failure, pip_settings, run_uv, uv_call, uv_variables

__all__ = [
    "BASE_NAME_LABEL",
    "KEEPER",
    "NOT_PUSHED",
    "REPO",
    "Bind",
    "Engine",
    "Environment",
    "Image",
    "LockedImage",
    "PackageLock",
    "Pin",
    "RunnerContainer",
    "Variant",
    "apptainer",
    "build",
    "build_image",
    "build_labels",
    "connect",
    "container_variables",
    "create_arguments",
    "descendants",
    "docker",
    "end_group",
    "engine_address",
    "engine_from",
    "engine_settings",
    "environment",
    "explained",
    "failure",
    "find_python",
    "image_file",
    "is_orphan",
    "lock",
    "lock_images",
    "memory_bytes",
    "model_binds",
    "note_installed",
    "pip_settings",
    "place_of",
    "process",
    "process_variables",
    "remove_socket_folder",
    "require_socket",
    "run_docker",
    "run_uv",
    "uv",
    "uv_call",
    "uv_variables",
    "write_lock",
]
