"""Stored results to bundle, made by the store itself from a recorded sample."""

from __future__ import annotations

import hashlib
import json
import tarfile
from typing import TYPE_CHECKING, Any

from golden.replay import analysed, load
from make.rows import document

from wattdock.metering import Span
from wattdock.publish import CreatedBundle, create_bundle, open_bundle
from wattdock.records import EnvironmentSnapshot, RestartRecord, disk
from wattdock.store import StoredResult, load_result, store_result

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from pathlib import Path


def stored(folder: Path, *, name: str = "20260101T000000-pytorch-0123abcd", **changes: Any) -> Path:
    """Make a result folder below `folder` and return it; `changes` are laid over the sample's."""
    result = folder / name
    result.mkdir(parents=True)
    (result / "result.json").write_text(json.dumps(document(changes)))
    return complete(result)


def complete(result: Path) -> Path:
    """Put beside a result.json the other files of a result: all of the sample's spans, without any sample in them."""
    sample = document()
    environment = EnvironmentSnapshot.model_validate(sample["environment"])
    (result / "restarts").mkdir()
    spans: dict[int, list[Span]] = {}
    for span in sample["spans"]:
        kept = spans.setdefault(span["restart"], [])
        kept += [Span(span["name"], span["start_ns"], span["end_ns"])] if span["name"] != "window" else []
    for restart, held in spans.items():
        record = RestartRecord(restart, environment=environment, spans=tuple(held))
        disk.write(record, result / f"restarts/{restart}")
    (result / "runner.log").write_text("loaded\n")
    return result


def rows(results: Path) -> list[StoredResult]:
    """Return a result, or all results of a folder."""
    folders = (
        [results] if (results / "result.json").exists() else [file.parent for file in results.glob("*/result.json")]
    )
    return [StoredResult(folder, load_result(folder)) for folder in folders]


def bundled(results: Path, out: Path, **options: Any) -> CreatedBundle:
    """Bundle `results`."""
    return create_bundle(rows(results), out, **options)


def sealed(folder: Path) -> Path:
    """Make the list of hashes fit whatever was changed, as whoever changes a bundle can."""
    sums = folder / "SHA256SUMS"
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path != sums)
    sums.write_text("".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in files))
    return folder


def opener(unpacked: ExitStack) -> Callable[[Path], Path]:
    """Return a function that verifies a bundle and returns its folder, which stays until `unpacked` is closed."""
    return lambda bundle: unpacked.enter_context(open_bundle(bundle)).folder


def store_golden(output_dir: Path, *names: str) -> list[Path]:
    """Analyse recorded cases, store them as results below `output_dir`, and return their folders."""
    folders = []
    for name in names:
        case = load(name)
        result, restarts = analysed(case.facts, case.restarts)
        parts = [(restart, None) for restart in restarts]
        folders.append(store_result(result, parts, log=output_dir / "none", output_dir=output_dir))
    return folders


def unpacked(path: Path, into: Path) -> Path:
    """Unpack a bundle of ours below `into` and return its folder; Python knows no filters before 3.11.4."""
    safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(path) as file:
        file.extractall(into, **safe)
        return into / file.getnames()[0].partition("/")[0]
