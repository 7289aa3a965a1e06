"""How large a model's headers may be, and its index of weights: coordinator and runners read the same strangers' files.

Needs the standard library only.
"""

from __future__ import annotations

import json

# Of a header and of an index of weights; more is forged. Of public models Kimi K2 in 4 bits has the most tensors,
# 207,000, whose index has 23 MB; a usual model has some hundred tensors and a header of 100 kB.
MAX_HEADER_BYTES = 32_000_000
# An index is one flat object in another. More brackets would become a thousand times as many bytes of empty objects.
MOST_BRACKETS = 1_000


def indexed_names(index: bytes, backend: str = "") -> set[str]:
    """Return the names of the files in an index of weights, model.safetensors.index.json.

    Raises:
        ValueError: It is no such index, or lacks the metadata without which the backend "pytorch" ends in a KeyError.

    Source: `get_checkpoint_shard_files` of transformers 5.24.
    """
    if len(index) > MAX_HEADER_BYTES:
        raise ValueError(f"it is larger than {MAX_HEADER_BYTES:,} bytes")
    if sum(map(index.count, (b"{", b"["))) > MOST_BRACKETS:
        raise ValueError("it is nested, and an index is flat")
    try:
        content = json.loads(index)
        names = set(content["weight_map"].values())
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(repr(error)) from error
    if not all(isinstance(name, str) for name in names):
        raise ValueError("weight_map names no files")
    if backend == "pytorch" and "metadata" not in content:
        raise ValueError('it has no "metadata": {}, which transformers reads')
    return names
