"""gguf's reader, for headers that a stranger wrote: every count is held against the file before it is believed.

An array is one part of its field, not one for each entry, so that a vocabulary takes a fraction of the time.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFValueType, ReaderField

_MAX_TENSORS, _MAX_KEYS, _MAX_DIMENSIONS = 2**14, 2**12, 8
_MAX_ENTRIES = 2**21  # of all arrays: the largest vocabularies have 1.4 million tokens, types, scores and merges
_MAX_TEXT = 2**24  # bytes of a string
_LENGTH = struct.Struct("<Q")
_Array = npt.NDArray[Any]  # of many types
_Field = tuple[int, list[_Array], list[int], list[GGUFValueType]]


def contents(field: ReaderField) -> Any:  # Any: values of many types
    """Return the value of a field of BoundedReader's. Raises ValueError for text that is not UTF-8."""
    if field.types != [GGUFValueType.ARRAY, GGUFValueType.STRING]:
        return field.contents()
    data, start, texts = memoryview(field.parts[-1]), 0, []  # type: ignore[arg-type]  # numpy's are buffers
    while start < len(data):
        end = start + 8 + _LENGTH.unpack_from(data, start)[0]
        texts.append(str(data[start + 8 : end], "utf-8"))
        start = end
    return texts


class BoundedReader(GGUFReader):
    """A GGUF file's header and tensors. Raises ValueError for a count that the file cannot hold, or no model has."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ValueError("not a regular file")
        self._num_entries = 0
        super().__init__(path)

    def _get(self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None) -> _Array:
        start, kind = int(offset), np.dtype(dtype)
        end = start + int(count) * kind.itemsize
        if end > len(self.data):
            raise ValueError(f"{end - start:,} bytes at {start:,}, where {max(0, len(self.data) - start):,} are left")
        # Not the map itself: numpy takes ten times as long to cut one.
        found: _Array = self.data.view(np.ndarray)[start:end].view(kind)
        return found.view(kind.newbyteorder(override_order or self.byte_order))

    def _get_str(self, offset: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        if (length := int(self._get(offset, np.uint64)[0])) > _MAX_TEXT:
            raise ValueError(f"a text of {length:,} bytes at {int(offset):,}")
        return super()._get_str(offset)

    def _build_fields(self, offs: int, count: int) -> int:
        # No more of either are read, whatever the file's size.
        tensors = int(self.fields["GGUF.tensor_count"].parts[0][0])
        for number, most, what in ((tensors, _MAX_TENSORS, "tensors"), (int(count), _MAX_KEYS, "keys")):
            if number > most:
                raise ValueError(f"{number:,} {what}: no model has more than {most:,}")
        return super()._build_fields(offs, count)

    def _get_tensor_info_field(self, orig_offs: int) -> Any:  # Any: gguf's ReaderField
        length = int(self._get(orig_offs, np.uint64)[0])
        if (dimensions := int(self._get(orig_offs + 8 + length, np.uint32)[0])) > _MAX_DIMENSIONS:
            raise ValueError(f"a tensor of {dimensions:,} dimensions")
        return super()._get_tensor_info_field(orig_offs)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> _Field:
        if raw_type != GGUFValueType.ARRAY or self.byte_order == "S":
            return super()._get_field_parts(orig_offs, raw_type)
        kind, length = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        parts, start, count = [kind, length], int(orig_offs) + 12, int(length[0])
        self._num_entries += count
        if self._num_entries > _MAX_ENTRIES:
            raise ValueError(f"arrays of {self._num_entries:,} entries: no model has more than {_MAX_ENTRIES:,}")
        types = [GGUFValueType.ARRAY, GGUFValueType(kind[0])]
        if types[1] == GGUFValueType.ARRAY:
            raise ValueError("an array of arrays")
        if types[1] == GGUFValueType.STRING:
            entries = self.data.view(np.ndarray)[start : self._end_of_strings(start, count)]
        else:
            entries = self._get(start, self.gguf_scalar_to_np[types[1]], count)
        return start + entries.nbytes - int(orig_offs), [*parts, entries], [2], types

    def _end_of_strings(self, start: int, count: int) -> int:
        data = memoryview(self.data)  # type: ignore[arg-type]  # numpy's are buffers
        for _ in range(count):
            left = len(data) - start - 8
            if left < 0 or (length := _LENGTH.unpack_from(data, start)[0]) > left:
                raise ValueError(f"an array of {count:,} strings, cut short")
            start += 8 + length
        return start
