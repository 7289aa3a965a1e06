"""What the site holds beside the files in docs/: reference pages and lists, made when it is built.

Called by MkDocs under these names (https://www.mkdocs.org/user-guide/plugins/#events).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

from site_reference import commands_page, list_page, results_page, settings_page, wire_page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

LISTS = {
    "decisions": ("Decisions", "What a successor would question, and why it is so."),
    "measurements": ("Measurements", "Figures seen, each with the command that made it, and those still to be had."),
}
# What stands behind a fence's language is for the tests that run the block.
FENCE = re.compile(r"^(\s*```\w+) .*$", re.MULTILINE)
FOLDER_LINK = re.compile(rf"\]\(((?:\.\./)*)({'|'.join(LISTS)})\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    docs = Path(config.docs_dir)
    pages = {
        "reference/settings.md": settings_page(),
        "reference/commands.md": commands_page(),
        "reference/results.md": results_page(),
        "reference/wire.md": wire_page(),
    }
    for folder, (title, lead) in LISTS.items():
        pages[f"{folder}/index.md"] = list_page(docs / folder, title, lead)
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Leave out what only tests read, and lead links to a folder to its list."""
    return FOLDER_LINK.sub(r"](\1\2/index.md)", FENCE.sub(r"\1", markdown))
