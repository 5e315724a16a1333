"""Read and dequantize GGUF files with the package gguf. Knows no architecture."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderField, ReaderTensor

SUFFIX = ".gguf"
ARCHITECTURE = "general.architecture"
MASK_TOKEN = "tokenizer.ggml.mask_token_id"
_TENSOR_COUNT = "split.tensors.count"
_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")  # how llama-gguf-split names the parts of a model


class StoredTensors(Mapping[str, Tensor]):
    """Tensors of GGUF files by name, [out, in], dequantized at each access: float32, or int64 as stored."""

    def __init__(self, stored: Mapping[str, tuple[Path, ReaderTensor]]) -> None:
        self._stored = stored

    def __getitem__(self, name: str) -> Tensor:
        return _dequantized(*self._stored[name])

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without dequantizing it."""
        return tuple(int(size) for size in reversed(self._stored[name][1].shape))

    def repeats(self, name: str, other: str) -> bool:
        """Return whether both are there and equal as stored."""
        if name not in self or other not in self:
            return False
        first, second = (self._stored[each][1] for each in (name, other))
        return first.tensor_type == second.tensor_type and np.array_equal(first.data, second.data)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file. `values` holds its metadata by key, of the tokenizer's the single values alone."""

    path: Path  # of a split file, the first part
    architecture: str
    values: Mapping[str, Any]  # metadata are of many types, checked where they are used
    tensors: StoredTensors
    _arrays: Mapping[str, ReaderField] = field(default_factory=dict)  # the tokenizer's

    @classmethod
    def read(cls, path: Path) -> GgufFile:
        """Read a file, or all parts of a split one, any of which names it; tensors when used. Raises UsageError."""
        reader = _opened(path)
        parts = _parts(path, _metadata(path, reader).get("split.count") or 1)
        readers = {part: reader if part == path else _opened(part) for part in parts}
        values = _metadata(parts[0], readers[parts[0]])
        stored = {tensor.name: (part, tensor) for part, reader in readers.items() for tensor in reader.tensors}
        if (count := values.get(_TENSOR_COUNT, len(stored))) != len(stored):
            raise UsageError(
                f"{path}: its parts hold {len(stored)} tensors, {_TENSOR_COUNT} is {count}: need all of one model"
            )
        arrays = {key: each for key, each in readers[parts[0]].fields.items() if _is_tokenizers(key, each)}
        return cls(parts[0], str(values.get(ARCHITECTURE)), values, StoredTensors(stored), arrays)

    def need_architecture(self, architectures: Collection[str], others: Mapping[str, str] | None = None) -> None:
        """Raise UsageError for an architecture that is none of these; `others` says of some of them what they are."""
        if (name := self.architecture) not in architectures:
            what = f", {others[name]}" if others and name in others else f": need {' or '.join(architectures)}"
            raise UsageError(f"{self.path}: {ARCHITECTURE} is {name}{what}")

    def of_architecture(self, key: str) -> Any:  # Any: as `values`
        """Return the value of `ARCHITECTURE.key`, None if missing."""
        return self.values.get(f"{self.architecture}.{key}")

    def tokenizer_array(self, name: str) -> list[Any]:  # Any: as `values`
        """Return `tokenizer.ggml.NAME`, empty if missing."""
        from outrider_drafters.readers.gguf_header import contents

        stored = self._arrays.get(f"tokenizer.ggml.{name}")
        try:
            return [] if stored is None else list(contents(stored))
        except ValueError as error:  # text that is not UTF-8
            raise _unreadable(self.path, error) from error

    def fields(self, keys: Mapping[str, str]) -> dict[str, Any]:  # Any: as `values`
        """Return those values of the architecture that are there, by what `keys` call them."""
        return {name: value for key, name in keys.items() if (value := self.of_architecture(key)) is not None}

    def renamed(self, rename: Callable[[str], str]) -> dict[str, str]:
        """Return the stored name of each tensor by its new one. Raises UsageError for two of one name."""
        stored: dict[str, str] = {}
        for name in self.tensors:
            if (new := rename(name)) in stored:
                raise UsageError(f"{self.path}: two tensors are {new}, one of them {name}")
            stored[new] = name
        return stored


def part_names(path: Path) -> list[Path]:
    """Return the paths of the parts of a split file by the name of one of them, in order; of any other name, itself."""
    if (name := _PART.fullmatch(path.name)) is None:
        return [path]
    return [path.with_name(f"{name[1]}-{number:05}-of-{name[2]}.gguf") for number in range(1, int(name[2]) + 1)]


def _parts(path: Path, count: int) -> list[Path]:
    if count == 1:
        return [path]
    if len(parts := part_names(path)) != count:
        raise UsageError(f"{path}: one of {count} parts, which need the names NAME-00001-of-{count:05}.gguf and so on")
    if missing := [part.name for part in parts if not part.is_file()]:
        raise UsageError(f"{path}: one of {count} parts: lacks {', '.join(missing)} beside it")
    return parts


def _metadata(path: Path, reader: GGUFReader) -> dict[str, Any]:  # Any: as `values`
    from outrider_drafters.readers.gguf_header import contents

    try:
        return {
            key: _exact(contents(each))
            for key, each in reader.fields.items()
            if not key.startswith("GGUF.") and not _is_tokenizers(key, each)
        }
    except (ValueError, IndexError, TypeError) as error:
        raise _unreadable(path, error) from error


def _is_tokenizers(key: str, stored: ReaderField) -> bool:
    """True for an array of the tokenizer's, which may be long."""
    from gguf import GGUFValueType

    return key.startswith("tokenizer.") and stored.types[:1] == [GGUFValueType.ARRAY]


def need_gguf(name: object) -> None:
    """Raise UsageError, which begins with the name of a file or model, where the package gguf is missing."""
    try:
        import gguf  # noqa: F401  # what is missing, where it is
    except ImportError as error:
        raise UsageError(f"{name}: GGUF files need the package gguf: pip install 'outrider[gguf]'") from error


def _opened(path: Path) -> GGUFReader:
    need_gguf(path)
    from outrider_drafters.readers.gguf_header import BoundedReader

    try:
        reader = BoundedReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, OSError) as error:
        raise _unreadable(path, error) from error
    if reader.byte_order == "S":
        raise UsageError(f"{path}: its numbers are of the other byte order (big-endian): convert it again")
    return reader


def _dequantized(path: Path, tensor: ReaderTensor) -> Tensor:
    from gguf.quants import dequantize

    # Integers are ids, which float32 would round above 2**24.
    if np.issubdtype(tensor.data.dtype, np.signedinteger):
        return torch.from_numpy(tensor.data.astype(np.int64))
    try:
        # Some rows at a time, of which gguf makes copies; and read, for what is mapped would stay in memory.
        values = np.empty([int(size) for size in reversed(tensor.shape)], np.float32)
        step = max(1, 2**24 // max(1, values[:1].size))
        for first in range(0, len(values), step):
            part = tensor.data[first : first + step]
            offset = tensor.data_offset + first * tensor.data.strides[0]
            stored = np.fromfile(path, part.dtype, part.size, offset=offset).reshape(part.shape)
            values[first : first + step] = dequantize(stored, tensor.tensor_type)
        return torch.from_numpy(values)
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        raise UsageError(f"{path}: tensor {tensor.name} of type {kind}: the package gguf cannot read it") from error


def _exact(value: object) -> object:
    """Turn a float32 into the decimal number that it was written from."""
    # Without this, eps is 9.999999747e-06 rather than 1e-5, and logits differ from those of the other layouts.
    with np.errstate(over="ignore"):  # of a double that is too large for float32
        return float(str(np.float32(value))) if isinstance(value, float) else value


def _unreadable(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path}: not a readable GGUF file, or cut short ({error})")
