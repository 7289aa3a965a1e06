"""Bundles for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.filesize import decimal as size_text

from wattdock.publish import results_table
from wattdock.text import listed, pluralize

if TYPE_CHECKING:
    from wattdock.console.views.terminal import View
    from wattdock.publish import Bundle, CreatedBundle, VerifiedBundle

FILES_SHOWN = 3


def created_view(bundle: CreatedBundle) -> View:
    """Yield what to look at before the bundle is handed out, what it holds, what is missing, and its digest."""
    names = bundle.identifying_files
    files = pluralize(len(names), "file contains", "files contain")
    which = f": {listed(names, FILES_SHOWN)}" if names else ""
    yield f"checked: {files} your user name, home folder or host name{which}"
    yield from whole_view(bundle)


def whole_view(bundle: VerifiedBundle) -> View:
    """Yield that the bundle is whole, what is missing, and its digest."""
    yield _whole_line(bundle)
    yield from _missing_and_digest(bundle)


def bundle_view(bundle: Bundle) -> View:
    """Yield that the bundle is whole, a table of its results, what is missing, and its digest."""
    yield from (_whole_line(bundle), "", *results_table(bundle.results()).splitlines())
    yield from _missing_and_digest(bundle)


def _whole_line(bundle: VerifiedBundle) -> str:
    return f"{bundle.path}: whole, {bundle.file_count} files, {size_text(bundle.size_bytes)}"


def _missing_and_digest(bundle: VerifiedBundle) -> View:
    yield from (f"missing: {sentence}" for sentence in bundle.manifest.missing)
    yield f"digest sha256:{bundle.digest}"
