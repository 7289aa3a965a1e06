"""Images of runners: build them, give them to a registry, and pin them by content."""

from wattdock.launch.images.bases import base_name, find_base, pull_base
from wattdock.launch.images.build import Builder
from wattdock.launch.images.build import build as build_image
from wattdock.launch.images.inputs import image_names, inputs_sha256
from wattdock.launch.images.labels import recipe_of
from wattdock.launch.images.lock import SETTING, LockedImage, ReadLock, lock_path, lock_sha256, read_lock, write_lock
from wattdock.launch.images.locked import Pin, find_locked, pull_locked
from wattdock.launch.images.locking import new_entries
from wattdock.launch.images.registry import push as push_image
from wattdock.launch.images.status import ImageStatus, asked_of_registry, image_status

__all__ = [
    "SETTING",
    "Builder",
    "ImageStatus",
    "LockedImage",
    "Pin",
    "ReadLock",
    "asked_of_registry",
    "base_name",
    "build_image",
    "find_base",
    "find_locked",
    "image_names",
    "image_status",
    "inputs_sha256",
    "lock_path",
    "lock_sha256",
    "new_entries",
    "pull_base",
    "pull_locked",
    "push_image",
    "read_lock",
    "recipe_of",
    "write_lock",
]
