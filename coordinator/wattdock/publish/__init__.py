"""Bundles of results for others: one file with everything behind a figure, verified byte by byte, and measured again.

In: stored results, the lock file of images; or a bundle from anybody.
Out: a tar file whose bytes follow from its content; a verified `Bundle`; a `Reproduction`: the bundle's study, ready to
be measured here, and its results to compare with.
Must not know: the command line; how runners are started or metered. Nothing in a bundle is executed.
"""

from wattdock.publish.bundle import Bundle, VerifiedBundle, open_bundle, verify_bundle
from wattdock.publish.create import CreatedBundle, create_bundle
from wattdock.publish.reproduce import LocalChoices, Reproduction, prepare_reproduction

__all__ = [
    "Bundle",
    "CreatedBundle",
    "LocalChoices",
    "Reproduction",
    "VerifiedBundle",
    "create_bundle",
    "open_bundle",
    "prepare_reproduction",
    "verify_bundle",
]
