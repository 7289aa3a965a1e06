"""Which of an image's digests is locked."""

from __future__ import annotations

from wattdock.launch.engine import Containers, Engine, Image
from wattdock.launch.images.labels import Recipe
from wattdock.launch.images.locking import from_image


def test_docker_hub_is_found_by_the_name_that_engines_leave_out() -> None:
    """`--registry docker.io/team`, as it was pushed to; the engine says "team/…"."""
    digests = (f"team/wattdock-x@sha256:{'a' * 64}", f"localhost:5000/wattdock-x@sha256:{'b' * 64}")
    image = Image("wattdock-x", f"sha256:{'c' * 64}", None, digests=digests)
    recipe = Recipe({}, {"BASE": "base"}, None, "2026-11-21T12:00:00+00:00")
    found = Containers(Engine("unix:///x", "docker", "1"), image)
    assert from_image("x", found, recipe, registry="docker.io/team").repo_digest == digests[0]
