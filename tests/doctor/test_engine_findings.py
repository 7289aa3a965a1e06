"""What a runner's figures are held against. Pure."""

from __future__ import annotations

import pytest

from wattdock.checks.doctor.engine import bandwidth_finding, link_gb_s
from wattdock.host import Link

NV18 = Link(a="a", b="b", nvlinks=18, path="SYS", peer_access=True)
SYS = Link(a="a", b="c", nvlinks=0, path="SYS", peer_access=True)


@pytest.mark.parametrize(
    ("links", "version", "pcie", "expected"),
    [
        ([NV18], "4.0", (5, 16), 450),
        ([NV18], None, (5, 16), None),
        ([SYS], None, (5, 16), 63),
        ([NV18, SYS], "4.0", (4, 16), 31.5),
        ([SYS], None, (None, None), None),
        ([], "4.0", (5, 16), None),
    ],
)
def test_a_group_is_as_fast_as_its_slowest_link(
    links: list[Link], version: str | None, pcie: tuple[int | None, int | None], expected: float | None
) -> None:
    """18 links of NVLink 4 carry 450 GB/s one way, 16 lanes of PCIe 5 carry 63."""
    assert link_gb_s(links, version, pcie) == (None if expected is None else pytest.approx(expected, rel=0.01))


@pytest.mark.parametrize(
    ("value", "expected", "status"), [("361 GB/s", 450.0, "ok"), ("31 GB/s", 450.0, "warn"), ("31 GB/s", None, "ok")]
)
def test_a_bandwidth_far_below_the_links_own_is_a_warning(value: str, expected: float | None, status: str) -> None:
    """Peer access was off, or NVLink was down."""
    assert bandwidth_finding(value, expected).status == status
