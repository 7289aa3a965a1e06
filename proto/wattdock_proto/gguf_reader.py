"""Read GGUF files of strangers: the library's reader, within the bounds of the file and of what a model needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

# Values that a reader takes from a file: each becomes an array of some 700 bytes. The embedded model has 250,000, most
# of its vocabulary; a model of 1,000 tensors whose vocabulary is passed over, 10,000.
MOST_VALUES = 1_000_000
# Types of GGUF files that serve a model. Source: `GGUFType` of gguf 0.19.
NO_MODELS = ("adapter", "imatrix", "mmproj")


class BoundedReader(gguf.GGUFReader):
    """Refuses lengths and counts beyond the file's end, which the library would follow one by one, and too many values.

    Raises:
        ValueError, LookupError, TypeError, ArithmeticError, RecursionError: The file is damaged or forged.
    """

    values_left = MOST_VALUES

    def _get(self, offset: int, dtype: Any, count: int = 1, *more: Any, **named: Any) -> Any:
        if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise ValueError(f"{int(count):,} values at byte {int(offset):,} are more than it holds")
        self.values_left -= 1
        if self.values_left < 0:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        return super()._get(offset, dtype, count, *more, **named)


class TensorReader(BoundedReader):
    """Reads which tensors a file holds; of arrays, such as a vocabulary, only the lengths."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind, count = int(self._get(orig_offs, np.uint32)[0]), int(self._get(orig_offs + 4, np.uint64)[0])
        at = orig_offs + 12
        if kind == gguf.GGUFValueType.STRING:
            order = "big" if self.endianess == gguf.GGUFEndian.BIG else "little"
            # A slice of numpy's array costs five times as much as one of its memory.
            data = memoryview(self.data)
            for _ in range(count):
                if at + 8 > len(data):
                    raise ValueError(f"{count:,} texts are more than it holds")
                at += 8 + int.from_bytes(data[at : at + 8], order)
        else:
            at += count * np.dtype(self.gguf_scalar_to_np[kind]).itemsize
        return at - orig_offs, [], [], [gguf.GGUFValueType.ARRAY]


def require_language_model(file: Path, parts: int) -> None:
    """Check that a GGUF file is of a language model and holds all its tensors.

    Args:
        parts: Parts of the model, as the names of files tell them.

    Raises:
        ValueError: It is an adapter, a calibration or a vision projector, or one of more parts than the names tell.
        ValueError, LookupError, TypeError, ArithmeticError, RecursionError, OSError: As `BoundedReader`.

    Source: `llama_model_loader` of llama.cpp, which compares split.count with the file's name; projectors have the
    architecture "clip".
    """
    fields, keys = TensorReader(file).fields, ("general.architecture", "general.type", "split.count")
    architecture, kind, count = (fields[key].contents() if key in fields else None for key in keys)
    if architecture == "clip" or kind in NO_MODELS:
        raise ValueError(f"it is of type {kind or 'vision projector'}")
    if isinstance(count, int) and count > parts:
        raise ValueError(f"its header says {count} parts, and its name {parts}; llama-gguf-split --merge joins parts")
