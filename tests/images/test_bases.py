"""Which base a build takes."""

from __future__ import annotations

from datetime import date

import pytest

from wattdock.launch.images.bases import Base, base_reference, own_digest
from wattdock.launch.images.lock import LockedImage

DIGEST = f"sha256:{'b' * 64}"
OPEN = dict.fromkeys(("repo_digest", "image_id", "inputs_sha256", "base_digest"), "not built")


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("nvcr.io/nvidia/pytorch:26.09-py3", f"nvcr.io/nvidia/pytorch@{DIGEST}"),
        ("nvcr.io/nvidia/pytorch:26.10-py3", "nvcr.io/nvidia/pytorch:26.10-py3"),
        ("localhost:5000/mine", "localhost:5000/mine"),
    ],
)
def test_a_base_is_the_locked_one_where_the_lock_is_about_it(base: str, expected: str) -> None:
    """A tag moves; another base was asked for on purpose."""
    entry = LockedImage(base="nvcr.io/nvidia/pytorch:26.09-py3", base_digest=DIGEST, date=date.today(), unresolved=OPEN)
    assert base_reference("pytorch", base, {"pytorch": entry}) == expected


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("docker.io/library/python:3.12", DIGEST),
        ("python:3.12", DIGEST),
        ("localhost:5000/mine:1", f"sha256:{'c' * 64}"),
        ("wattdock-test-base", None),
    ],
)
def test_a_base_has_the_digest_of_the_registry_in_its_name(base: str, expected: str | None) -> None:
    """Not that of wherever else it was pushed to; engines shorten names."""
    digests = (f"localhost:5000/mine@sha256:{'c' * 64}", f"python@{DIGEST}", f"localhost:5001/mine@sha256:{'d' * 64}")
    assert own_digest(base, digests) == expected


def test_a_build_names_its_base_by_digest_and_tag() -> None:
    """The digest decides, the tag tells people what it was."""
    assert Base("python:3.12", "sha256:1", DIGEST).argument == f"python:3.12@{DIGEST}"
    assert Base(f"python@{DIGEST}", "sha256:1", DIGEST).argument == f"python@{DIGEST}"
    assert Base("mine", "sha256:1", None).argument == "mine"
