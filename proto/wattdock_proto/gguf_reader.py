"""Read GGUF files of strangers: the library's reader, within the bounds of the file and of what a model needs."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

# Values that a reader takes from a file: each becomes an array of some 700 bytes. The embedded model has 250,000, most
# of its vocabulary; a model of 1,000 tensors whose vocabulary is passed over, 10,000.
MOST_VALUES = 1_000_000


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
            for _ in range(count):
                if at + 8 > len(self.data):
                    raise ValueError(f"{count:,} texts are more than it holds")
                at += 8 + int.from_bytes(self.data[at : at + 8].tobytes(), order)
        else:
            at += count * np.dtype(self.gguf_scalar_to_np[kind]).itemsize
        return at - orig_offs, [], [], [gguf.GGUFValueType.ARRAY]
