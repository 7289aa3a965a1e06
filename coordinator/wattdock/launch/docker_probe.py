"""Say whether Docker can serve a backend on this machine, and if not, why.

Starts nothing and pulls nothing.
"""

from __future__ import annotations

import os
import socket

TIMEOUT_S = 3
DEFAULT_ENGINE = "unix:///var/run/docker.sock"


def docker_reason(image: str) -> str | None:
    """Return why Docker cannot run `image` here, in one line; None when an engine answers and has the image."""
    engine = os.environ.get("DOCKER_HOST") or DEFAULT_ENGINE
    return socket_reason(engine) or image_reason(engine, image)


def socket_reason(engine: str) -> str | None:
    """Return why nothing can be asked of an engine's Unix socket; None when it can, or when it is no such socket."""
    if not engine.startswith("unix://"):
        return None
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(TIMEOUT_S)
        try:
            probe.connect(engine.removeprefix("unix://"))
        except PermissionError:
            return f"permission denied on {engine}"
        except OSError:
            return f"no Docker engine answers at {engine}"
    return None


def image_reason(engine: str, image: str) -> str | None:
    """Return why an engine cannot run `image`; None when it has it."""
    # Slow to import, and needed only where there is an engine.
    import docker.errors

    try:
        client = docker.from_env(timeout=TIMEOUT_S)
    except docker.errors.DockerException:
        return f"no Docker engine answers at {engine}"
    try:
        client.images.get(image)
    except docker.errors.ImageNotFound:
        return f"image {image} is not there"
    except (docker.errors.DockerException, OSError) as error:
        return f"the Docker engine at {engine} cannot say whether it has image {image}: {error}"
    finally:
        client.close()
    return None
