"""What the site holds beside the files in docs/: lists of decisions and measurements, made when it is built.

Called by MkDocs under these names (https://www.mkdocs.org/user-guide/plugins/#events).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

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
    """Add the lists."""
    for folder, (title, lead) in LISTS.items():
        content = _list_page(Path(config.docs_dir) / folder, title, lead)
        files.append(File.generated(config, f"{folder}/index.md", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Leave out what only tests read, and lead links to a folder to its list."""
    return FOLDER_LINK.sub(r"](\1\2/index.md)", FENCE.sub(r"\1", markdown))


def _list_page(folder: Path, title: str, lead: str) -> str:
    """Return a list of the pages in a folder, by their headings."""
    lines = [f"# {title}", "", lead, ""]
    for file in sorted(folder.glob("*.md")):
        heading = file.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        lines.append(f"- [{heading}]({file.name})")
    return "\n".join(lines) + "\n"
