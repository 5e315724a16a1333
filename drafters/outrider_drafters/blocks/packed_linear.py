"""Products with weights that are packed once for oneDNN, torch's own other library for products on CPUs.

oneDNN's kernels use all that any maker's processor offers. MKL's, behind torch's float32 products, do not on AMD: there
they take twice the time at 80 rows (measured on an EPYC with AVX-512). For few rows MKL stays ahead.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_PACKED_ROWS = 12  # from here on packed weights are faster (measured)


class PackedLinear:
    """A linear layer with weight [out, in]; it keeps a second, packed copy where that can be used."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, packed: bool = True) -> None:
        self.weight = weight
        self._bias = bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, None) if packed and can_pack(weight) else None

    def __call__(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        num_rows = x.numel() // x.shape[-1]
        if self._packed is None or num_rows < _PACKED_ROWS:
            return F.linear(x, self.weight, self._bias)
        if (padding := padded_rows(num_rows) - num_rows) == 0:
            return self._product(x)
        padded = F.pad(x.reshape(num_rows, -1), (0, 0, 0, padding))
        return self._product(padded)[:num_rows].view(*x.shape[:-1], -1)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """Map [..., in] to [..., out] and add `residual`."""
        num_rows = x.numel() // x.shape[-1]
        if self._packed is None or num_rows < _PACKED_ROWS or padded_rows(num_rows) != num_rows:
            return residual + self(x)
        total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._packed, self._bias, "add")
        return total

    def _product(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return product


def padded_rows(num_rows: int) -> int:
    """Return the next number of rows that packed products take: 16, 24, ... 128, 144, ..., an eighth more at most."""
    # oneDNN compiles a kernel for every number of rows, which takes longer than the product and half a MiB, and keeps
    # 1024 of them.
    granule = max(8, 1 << max(num_rows.bit_length() - 4, 0))
    return -(-num_rows // granule) * granule


def can_pack(weight: Tensor) -> bool:
    """Return whether this is a plain float32 matrix on a CPU whose torch has oneDNN."""
    # Not isinstance: a subclass, such as a quantized weight, is no plain matrix.
    is_plain = type(weight) in (Tensor, torch.nn.Parameter)
    return is_plain and weight.dtype == torch.float32 and weight.device.type == "cpu" and _has_onednn()


def _has_onednn() -> bool:
    is_built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call] # torch
    # Operators that torch.compile calls, too; they are no part of torch's public interface.
    return is_built and hasattr(torch.ops.mkldnn, "_linear_pointwise")
