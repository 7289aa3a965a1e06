"""What a bundle says to people: README.md and CITATION.cff. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from wattdock.analysis import BOUNDARY_STATEMENT
from wattdock.publish.manifest import CARDS, CITATION, LOCK, MANIFEST, PROMPTS, RESULTS, STUDY, SUMS, Code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.publish.manifest import BundledResult, BundleManifest

NAMELESS = "the authors of this measurement"


def readme(manifest: BundleManifest, title: str, *, has_lock: bool) -> str:
    """Return README.md."""
    return "\n".join(
        [
            f"# {title}",
            "",
            f"Energy of LLM inference, measured with {_measured(manifest.results)}.",
            "",
            f"Bundled {manifest.created_utc} with {_code(manifest.code)}.",
            "",
            *_table(manifest.results),
            "",
            f"Boundary of energy: {BOUNDARY_STATEMENT}",
            "",
            *_reasons(manifest.results),
            "## Check it, and run it again",
            "",
            "```",
            f"wattdock bundle verify {manifest.name}.tar",
            f"wattdock reproduce {manifest.name}.tar    # on a machine with the same GPUs",
            "```",
            "",
            f"Both take this folder as well. `sha256sum -c {SUMS}` checks the same hashes without wattdock.",
            "",
            "## What is in it",
            "",
            *_contents(manifest, has_lock=has_lock),
            "",
            *_notes(manifest),
        ]
    )


def citation(manifest: BundleManifest, title: str, authors: Sequence[str]) -> str:
    """Return CITATION.cff; an author is written "Family, Given", or as one name.

    Source: Citation File Format 1.2.0.
    """
    measured = {(one.code.version, one.code.commit or "") for one in manifest.results if one.code}
    software = [
        {"type": "software", "title": "wattdock", "version": version}
        | ({"commit": commit} if commit else {})
        | {"authors": [{"name": "The wattdock authors"}]}
        for version, commit in sorted(measured)
    ]
    document = {
        "cff-version": "1.2.0",
        "message": "If you use these measurements, please cite them.",
        "title": title,
        "type": "dataset",
        "authors": [_author(name) for name in authors or (NAMELESS,)],
        "date-released": manifest.created_utc[:10],
    } | ({"references": software} if software else {})
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _author(name: str) -> dict[str, str]:
    family, comma, given = (part.strip() for part in name.partition(","))
    return {"family-names": family, "given-names": given} if comma else {"name": name}


def _measured(results: Sequence[BundledResult]) -> str:
    """Return the code that measured; results of several versions, or of an unknown one, may lie together."""
    return " and ".join(sorted({_code(one.code) if one.code else "an unknown version of wattdock" for one in results}))


def _code(code: Code) -> str:
    commit = f" at commit {code.commit}{' with changes' if code.dirty else ''}" if code.commit else ""
    return f"wattdock {code.version}{commit}"


def _table(results: Sequence[BundledResult]) -> list[str]:
    rows = [one.cells() for one in results]
    lines = (tuple(rows[0]), ("---",) * len(rows[0]), *(one.values() for one in rows))
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _reasons(results: Sequence[BundledResult]) -> list[str]:
    if not (unfit := [one for one in results if one.reasons]):
        return []
    lines = [f"- {one.label}: {'; '.join(one.reasons)}" for one in unfit]
    return ["## Why some of it may not be published", "", *lines, ""]


def _contents(manifest: BundleManifest, *, has_lock: bool) -> list[str]:
    lines = [
        f"- `{MANIFEST}`: this table for programs, the code's version, what was replaced and what is missing",
        f"- `{STUDY}`: every experiment with all its settings; here, `wattdock run {STUDY} --output-dir ..` runs them",
        f"- `{RESULTS}/<folder>/`: `result.json` (figures, audit, environment), timeline and requests, `runner.log`",
    ]
    if manifest.studies:
        lines.append(f"- `{RESULTS}/studies/<study>/journal.jsonl`: what was measured when")
    if manifest.prompt_files:
        lines.append(f"- `{PROMPTS}/`: the prompts that were read from files, by the beginning of their SHA-256")
    if has_lock:
        lines.append(f"- `{LOCK}`: the images, by digest")
    return [*lines, f"- `{CARDS}/`: how each GPU's energy counter behaves, where that was measured", f"- `{CITATION}`"]


def _notes(manifest: BundleManifest) -> list[str]:
    lines = [f"Missing: {one}." for one in manifest.missing]
    if manifest.replaced:
        said = ", ".join(f"`{one.stand_in}` ({one.times} times)" for one in manifest.replaced)
        lines.append(f"Names and secrets were replaced before the hashes were made: {said}.")
    return [line for one in lines for line in (one, "")]
