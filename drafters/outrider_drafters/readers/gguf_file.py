"""Read and dequantize GGUF files with the package gguf. Knows no architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFValueType, ReaderTensor

SUFFIX = ".gguf"
ARCHITECTURE = "general.architecture"
MASK_TOKEN = "tokenizer.ggml.mask_token_id"
NO_OTHERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file. `values` holds its metadata by key, of the tokenizer's the mask token alone."""

    path: Path
    architecture: str
    values: Mapping[str, Any]  # metadata are of many types, checked where they are used
    tensors: Mapping[str, Tensor]  # float32, or int64 as stored; [out, in]

    @classmethod
    def read(cls, path: Path, architectures: tuple[str, ...], others: Mapping[str, str] = NO_OTHERS) -> GgufFile:
        """Read a file. Raises UsageError if it is broken, of another architecture, or the package gguf is missing.

        `others` says of some architectures that are not read what they are.
        """
        reader = _opened(path)
        try:
            values = {
                key: _exact(field.contents())
                for key, field in reader.fields.items()
                if not key.startswith(("tokenizer.", "GGUF.")) or key == MASK_TOKEN
            }
            architecture = str(values.get(ARCHITECTURE))
            if architecture not in architectures:
                what = f", {others[architecture]}" if architecture in others else f": need {' or '.join(architectures)}"
                raise UsageError(f"{path}: {ARCHITECTURE} is {architecture}{what}")
            tensors = {tensor.name: _dequantized(path, tensor) for tensor in reader.tensors}
        # UsageError is a ValueError, which the next clause would wrap.
        except UsageError:
            raise
        except (ValueError, IndexError, TypeError) as error:
            raise _unreadable(path, error) from error
        return cls(path, architecture, values, tensors)

    def of_architecture(self, key: str) -> Any:  # Any: as `values`
        """Return the value of `ARCHITECTURE.key`, None if missing."""
        return self.values.get(f"{self.architecture}.{key}")


def read_summary(path: Path) -> tuple[dict[str, Any], int]:  # Any: as `values`
    """Return the metadata that are single values, and the number of weights. Raises UsageError for a broken file."""
    reader = _opened(path)
    try:
        single = {key: field for key, field in reader.fields.items() if field.types[:1] != [_array_type()]}
        values = {key: _exact(field.contents()) for key, field in single.items()}
    except (ValueError, IndexError, TypeError) as error:
        raise _unreadable(path, error) from error
    return values, sum(int(tensor.n_elements) for tensor in reader.tensors)


def _array_type() -> GGUFValueType:
    from gguf import GGUFValueType

    return GGUFValueType.ARRAY


def _opened(path: Path) -> GGUFReader:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise UsageError(f"{path}: GGUF files need the package gguf: pip install 'outrider[gguf]'") from error
    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, OSError) as error:
        raise _unreadable(path, error) from error


def _dequantized(path: Path, tensor: ReaderTensor) -> Tensor:
    from gguf.quants import dequantize

    # Integers are ids, which float32 would round above 2**24.
    if np.issubdtype(tensor.data.dtype, np.signedinteger):
        return torch.from_numpy(tensor.data.astype(np.int64))
    try:
        return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        raise UsageError(f"{path}: tensor {tensor.name} of type {kind}: the package gguf cannot read it") from error


def _exact(value: object) -> object:
    """Turn a float32 into the decimal number that it was written from."""
    # Without this, eps is 9.999999747e-06 rather than 1e-5, and logits differ from those of the other layouts.
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _unreadable(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path}: not a readable GGUF file ({error})")
