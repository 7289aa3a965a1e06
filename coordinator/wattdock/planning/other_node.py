"""What a plan has to know of another node: the GPUs it gives, and what a result says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.host import Gpu
    from wattdock.records import snapshot


class OtherNode(Protocol):
    """Another node that holds a part of the model.

    Attributes:
        gpus: The GPUs of the node that the experiment runs on.
        host_gpus: All GPUs of the node.
    """

    gpus: Sequence[Gpu]
    host_gpus: Sequence[Gpu]

    @property
    def facts(self) -> snapshot.NodeFacts:
        """What a result says of the node, as far as that is known by now."""
