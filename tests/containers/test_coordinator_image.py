"""The coordinator's own image, on the engine that it is to start runners on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from containers.engines import image_there
from unprivileged import UID

if TYPE_CHECKING:
    from docker import DockerClient


def test_the_coordinator_in_a_container_finds_the_engine_and_its_image(client: DockerClient) -> None:
    """As an unprivileged user, read-only and with no network."""
    image = image_there("wattdock-coordinator")
    runner = image_there("wattdock-pytorch")
    socket = image.engine.address.removeprefix("unix://")
    said = client.containers.run(
        image.image.id,
        "plan --backend pytorch --model shape:tiny-llama --accelerator cpu --launcher auto --output-dir /tmp/results",
        volumes={socket: {"bind": "/var/run/docker.sock"}},
        environment={"HOME": "/tmp", "WATTDOCK_LEASES": "/tmp/leases"},
        user=f"{UID}:{UID}",
        tmpfs={"/tmp": "mode=1777"},
        network_mode="none",
        read_only=True,
        remove=True,
    )
    assert f"launcher: docker (docker {image.engine.version} has image {runner.image.name};" in said.decode()
