"""The kept figure's result, whole or changed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = Path(__file__).resolve().parents[2] / "docs/measurements/data"
SERVED, TRAINED, SPLITS = (DATA / f"{name}.tar" for name in ("smollm2-h200", "train-two-h200", "splits-two-h200"))

# Another node, as `environment.nodes` has it.
OTHER_NODE = {"name": "node2:8070", "host_name": "node2", "boot_id": "b", "gpu_uuids": ["GPU-2"]}


def kept_document() -> dict[str, Any]:
    """Return its result.json, with what only later versions tell."""
    with tarfile.open(SERVED) as bundle:
        [name] = [name for name in bundle.getnames() if name.endswith("/result.json")]
        content = bundle.extractfile(name)
        assert content
        document: dict[str, Any] = json.load(content)
    # Told since; as `--again` finds it.
    document["performance"]["mean_in_flight"] = 159.66483347327116
    return document


def kept(folder: Path, changes: Mapping[str, object] = {}) -> Path:
    """Make a folder with that result, changed at dotted names, and return it."""
    document = kept_document()
    for name, value in changes.items():
        *way, last = name.split(".")
        part = document
        for step in way:
            part = part[step]
        part[last] = value
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(document), encoding="utf-8")
    return folder
