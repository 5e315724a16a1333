"""Products with weights that are packed once for oneDNN, torch's own other library for products on CPUs.

oneDNN's kernels use all that any maker's processor offers. MKL's, behind torch's float32 products, do not on AMD: large
weights take up to half the time by oneDNN as they are, though it brings them into its layout anew in every product.
Weights of 200 MB and more take about half the time packed, for 1 row as for 33, in both types (measured on an EPYC with
AVX-512); weights that fit into the processor's cache gain from some ten rows on.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.processor import padded_rows

_WORTH_A_COPY = range(2**18, 2**24 + 1)  # values: smaller ones stay in the cache, larger ones take much memory


class PackedLinear:
    """A linear layer, weight [out, in], perhaps packed as a copy; None: if it has 262,144 to 16.8 million values."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, packed: bool | None = True, parts: Sequence[Tensor] = ()
    ) -> None:
        self._parts = parts or (weight,)  # the same rows, for products that cannot be packed
        self.weight = self._parts[0]
        self.bias = bias
        if packed is None:
            packed = weight.numel() in _WORTH_A_COPY
        can = (packed or weight.numel() >= _WORTH_A_COPY.start) and can_pack(weight)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, None) if packed and can else None
        self._operand = weight if can and not packed else self._packed  # None: torch's own product

    @property
    def by_onednn(self) -> bool:
        return self._operand is not None

    def __call__(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        num_rows = x.numel() // x.shape[-1]
        if not self._takes(x, num_rows):
            if len(self._parts) == 1:
                return F.linear(x, self.weight, self.bias)
            product = torch.cat([F.linear(x, part) for part in self._parts], dim=-1)
            return product if self.bias is None else product + self.bias
        if (padding := padded_rows(num_rows) - num_rows) == 0:
            return self._product(x)
        padded = F.pad(x.reshape(num_rows, -1), (0, 0, 0, padding))
        return self._product(padded)[:num_rows].view(*x.shape[:-1], -1)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """Map [..., in] to [..., out] and add `residual`."""
        num_rows = x.numel() // x.shape[-1]
        if not self._takes(x, num_rows) or padded_rows(num_rows) != num_rows:
            return residual + self(x)
        total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._operand, self.bias, "add")
        return total

    def _takes(self, x: Tensor, num_rows: int) -> bool:
        # oneDNN's product knows one type alone, and cannot be differentiated.
        return self.by_onednn and num_rows > 0 and x.dtype == self.weight.dtype and not x.requires_grad

    def _product(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._operand, self.bias, "none", [], "")
        return product


def can_pack(weight: Tensor) -> bool:
    """Return whether this is a plain float32 or bfloat16 matrix on a CPU for which torch has oneDNN's kernels."""
    # Not isinstance: a subclass, such as a quantized weight, is no plain matrix.
    is_plain = type(weight) in (Tensor, torch.nn.Parameter) and weight.device.type == "cpu" and _has_onednn()
    if weight.dtype == torch.bfloat16:
        # Without AVX-512 (on x86) oneDNN has none for bfloat16.
        return is_plain and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return is_plain and weight.dtype == torch.float32


def _has_onednn() -> bool:
    is_built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call] # torch
    # Operators that torch.compile calls, too; they are no part of torch's public interface.
    return is_built and hasattr(torch.ops.mkldnn, "_linear_pointwise")
