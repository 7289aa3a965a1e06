"""Images that runners are started from: build them, give them to a registry, and pin them by content.

In: a backend's name, its Dockerfile, the local engine. Out: images named `wattdock-<backend>`; `docker/images.lock`
says by digest which image `--locked` starts. Must not know: experiments, how a container is started.
"""

from wattdock.launch.images.build import build_image
from wattdock.launch.images.lock import LOCK_VARIABLE, ImagesLock, lock_path, read_lock
from wattdock.launch.images.locked import ImageStatus, image_statuses, lock_images, pull_image
from wattdock.launch.images.registry import push_image

__all__ = [
    "LOCK_VARIABLE",
    "ImageStatus",
    "ImagesLock",
    "build_image",
    "image_statuses",
    "lock_images",
    "lock_path",
    "pull_image",
    "push_image",
    "read_lock",
]
