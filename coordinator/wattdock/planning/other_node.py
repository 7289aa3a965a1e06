"""What a plan has to know of another node: the GPUs it gives, and what a result says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.host import Gpu
    from wattdock.records import snapshot


class OtherNode(Protocol):
    """Another node that holds a part of the model."""

    @property
    def gpus(self) -> Sequence[Gpu]:
        """The GPUs of the node that the experiment runs on."""

    @property
    def host_gpus(self) -> Sequence[Gpu]:
        """All GPUs of the node."""

    @property
    def facts(self) -> snapshot.NodeFacts:
        """What a result says of the node, as far as that is known by now."""
