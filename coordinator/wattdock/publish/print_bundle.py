"""What a person sees of a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.reports import Sheet, console
from wattdock.text import pluralize

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from wattdock.publish.create import Created
    from wattdock.publish.manifest import BundleManifest
    from wattdock.publish.verify import Verified

# Without the revision: a terminal has no room for it.
FIGURES = ("J/output token", "tokens/s")
COLUMNS = ("experiment", "status", "model", "weights", "ran on", *FIGURES, "publishable")


def print_created(created: Created) -> None:
    """Print where a new bundle is, its digest, what is missing in it and what was replaced."""
    out = console()
    manifest = created.manifest
    _lines(out, _rest(manifest))
    out.print(f"{created.path}: {pluralize(len(manifest.results), 'result')}", markup=False, soft_wrap=True)
    out.print(f"digest sha256:{created.digest} (print it beside your figures)", markup=False, soft_wrap=True)


def print_verified(path: Path, found: Verified) -> None:
    """Print that a bundle is whole, and its digest."""
    size = f"{found.files} files, {found.size_bytes / 1e6:,.1f} MB"
    console().print(f"{path}: whole: {size}, digest sha256:{found.digest}", markup=False, soft_wrap=True)


def print_bundle(found: Verified) -> None:
    """Print what is in a bundle."""
    out, manifest = console(), found.manifest
    cells = [one.cells() for one in manifest.results]
    rows = [[plain(one[name]) for name in COLUMNS] for one in cells]
    out.print(Sheet(COLUMNS, rows, right=FIGURES, title=plain(manifest.title or manifest.name)))
    code = manifest.code
    commit = f" at {code.commit[:12]}{' with changes' if code.dirty else ''}" if code.commit else ""
    _lines(out, [f"made {manifest.created_utc} by wattdock {code.version}{commit}", *_rest(manifest)])
    out.print(f"digest sha256:{found.digest}", markup=False, soft_wrap=True)


def plain(text: str) -> str:
    """Return a text without what would steer a terminal: a bundle may be anybody's."""
    return "".join(one if one.isprintable() else "�" for one in text)


def _rest(manifest: BundleManifest) -> list[str]:
    lines = [f"missing: {one}" for one in manifest.missing]
    lines += [f"replaced by {one.stand_in} {one.times} times: a {one.kind}" for one in manifest.replaced]
    return [*lines, "names were left as they were, as asked for"] if manifest.names_kept else lines


def _lines(out: Console, lines: list[str]) -> None:
    for line in lines:
        out.print(plain(line), markup=False, soft_wrap=True)
