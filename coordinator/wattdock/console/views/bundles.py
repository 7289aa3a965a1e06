"""Bundles for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.filesize import decimal as size_text

from wattdock.text import listed, pluralize

if TYPE_CHECKING:
    from wattdock.console.views.terminal import View
    from wattdock.publish import CreatedBundle, VerifiedBundle

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
    yield f"{bundle.path}: whole, {bundle.file_count} files, {size_text(bundle.size_bytes)}"
    yield from (f"missing: {sentence}" for sentence in bundle.manifest.missing)
    yield f"digest sha256:{bundle.digest}"
