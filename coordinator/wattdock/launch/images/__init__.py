"""Images that runners are started from: build them from wattdock's sources, lock them by content, pull them.

In: a backend's name, its Dockerfile, the local engine. Out: images named `wattdock-<backend>`; `docker/images.lock`,
which says by digest which image `run --locked` starts. Must not know: experiments, how a container is started.
"""

from wattdock.launch.engine import find_image
from wattdock.launch.images.build import build_image
from wattdock.launch.images.lock import ImagesLock, find_locked, lock_images, lock_path, pull_image, read_lock

__all__ = [
    "ImagesLock",
    "build_image",
    "find_image",
    "find_locked",
    "lock_images",
    "lock_path",
    "pull_image",
    "read_lock",
]
