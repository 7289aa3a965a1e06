"""publish."""

from wattdock.publish.create import Wishes, create
from wattdock.publish.print_bundle import print_bundle, print_created, print_verified
from wattdock.publish.print_reproduction import print_comparisons
from wattdock.publish.reproduce import Local, Reproduction, prepare
from wattdock.publish.reproduction import Comparison
from wattdock.publish.verify import opened, opener, verify

__all__ = [
    "Comparison",
    "Local",
    "Reproduction",
    "Wishes",
    "create",
    "opened",
    "opener",
    "prepare",
    "print_bundle",
    "print_comparisons",
    "print_created",
    "print_verified",
    "verify",
]
