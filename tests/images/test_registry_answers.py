"""What engines pass on from a registry, and what of it says that an image is gone."""

from __future__ import annotations

import pytest

from wattdock.launch.images.registry import is_gone

REFERENCE = f"registry.example/team/wattdock-vllm@sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        ("manifest unknown: manifest unknown", True),
        ("name unknown: The repository does not exist", True),
        (f"failed to resolve reference: {REFERENCE}: not found", True),
        (f"Head https://registry.example/v2/team/wattdock-vllm/manifests/{'a' * 64}: not found", False),
        ("unexpected status: not found", False),
        ("404 page not found", False),
    ],
)
def test_only_a_word_about_the_image_itself_says_that_it_is_gone(said: str, gone: bool) -> None:
    """A proxy's or a wrong address's 404 would make a lock look broken."""
    assert is_gone(f"the registry of {REFERENCE} does not tell its digest: {said}", REFERENCE) is gone
