"""int8 and int4 codes of a matrix, and products of rows with them.

int8   code * scale, one scale per row                            1 byte per value
int4   (code - 8) * scale + zero, both per group of a row         1/2 byte per value and 4 bytes per group

Products of few rows are torch's own kernels. They round activations to bfloat16 and no further, each row on its own, so
that a node's logits depend on no other node. A target's products round activations to int8, too, and add up integers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property, partial
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.processor import cpu_has_bf16, padded_rows

LARGEST = 127.5  # half the range of int8
MIDDLE = 8  # of int4's codes 0 .. 15
# Limits of torch 2.13's kernels: both crash on matrices that do not begin at a multiple of ALIGNMENT bytes, the int8
# one reads past rows that are not a multiple of INT8_WIDTH values, the int4 one takes multiples of INT4_ROWS rows.
ALIGNMENT = 64
INT8_WIDTH = 16
INT4_ROWS = 16
_WORTH_PACKING = 2**18  # values of a target's matrix
FEW_ROWS = 16  # up to here torch's kernels for few rows are faster than a product with codes as bfloat16


@dataclass(frozen=True, eq=False)
class _CodedRows:
    """What both codes have: fields that are tensors of n rows each."""

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, part.name) for part in fields(self))

    def select_rows(self, rows: Tensor | slice) -> Self:
        return type(self)(*(part[rows] for part in self.parts))

    def concat(self, others: Sequence[_CodedRows]) -> Self | None:
        """Concatenate rows; None if the others are coded in another way."""
        alike = [self, *(other for other in others if isinstance(other, type(self)))]
        if len(alike) <= len(others) or len({each.parts[1].shape[1:] for each in alike}) > 1:
            return None
        return type(self)(*map(torch.cat, zip(*(each.parts for each in alike), strict=True)))

    def multiply(self, x: Tensor) -> Tensor:
        """Multiply rows [m, k] with the matrix: [m, n]."""
        # Activations, too, must begin where the kernels can read them.
        rows = aligned(x.bfloat16().contiguous())
        return self.multiply_few(rows) if len(rows) <= FEW_ROWS else self.multiply_many(rows)

    @abstractmethod
    def multiply_few(self, x: Tensor) -> Tensor:
        """Multiply few rows [m, k] with the matrix: [m, n] bfloat16."""

    @abstractmethod
    def multiply_many(self, x: Tensor) -> Tensor:
        """Multiply many rows: the same product by another kernel."""


@dataclass(frozen=True, eq=False)
class Int8Codes(_CodedRows):
    """A matrix [n, k] as int8 codes with one scale per row."""

    codes: Tensor  # [n, k] int8
    scales: Tensor  # [n] bfloat16

    @classmethod
    def rounded(cls, weight: Tensor) -> Self:
        """Round the rows of a matrix [n, k], each to the scale that its largest value needs."""
        weight = weight.float()
        # As torchao's symmetric codes: -128 to 127 about 0, never divided by a scale of 0.
        scales = (weight.abs().amax(dim=1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny).bfloat16()
        codes = (weight / scales.float().unsqueeze(-1)).round().clamp(-128, 127)
        return cls(codes.to(torch.int8), scales)

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def values(self) -> Tensor:
        """Decode to [n, k] float32."""
        return self.codes.float() * self.scales.float().unsqueeze(-1)

    def multiply_few(self, x: Tensor) -> Tensor:
        """Multiply few rows [m, k] with the matrix: [m, n] bfloat16."""
        if self.codes.shape[1] % INT8_WIDTH:
            return self.multiply_many(x)
        product: Tensor = torch.ops.aten._weight_int8pack_mm(x, self._aligned, self.scales)
        return product

    def multiply_many(self, x: Tensor) -> Tensor:
        """Multiply many rows: the same product by another kernel."""
        # Exact codes: 8 bits fit into bfloat16's mantissa. Scaling them first would round every weight.
        return _linear(x, self.codes) * self.scales

    @cached_property
    def _aligned(self) -> Tensor:
        # Tensors of a memory-mapped file begin anywhere; the kernel would crash.
        return aligned(self.codes)


@dataclass(frozen=True, eq=False)
class ExactInt8Codes(Int8Codes):
    """int8 codes of a target, whose products give a row the same bits in whatever company it is multiplied.

    Each row of x is rounded to int8 by its own largest value; sums of integers have no order. They stay below 2**31 for
    rows of up to 130,000 values.
    """

    def multiply(self, x: Tensor) -> Tensor:
        """Multiply rows [m, k] float32 with the matrix: [m, n] float32."""
        rows, scales = _rounded_rows(x)
        return self._integers(rows).mul_(scales)

    def multiply_codes(self, rows: Tensor) -> Tensor:
        """Do as code_product() without packing."""
        return self._integers(rows.to(torch.int16) - 128)

    def _integers(self, rows: Tensor) -> Tensor:
        return torch._int_mm(rows.to(torch.int8), self.codes.t()).float().mul_(self.scales.float())


def packed_product(of_codes: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the product of rows [m, k] float32, of one that code_product() returned: bit for bit its matrices' own."""
    return partial(_packed_product, of_codes)


def code_product(*weights: ExactInt8Codes) -> Callable[[Tensor], Tensor]:
    """Pack matrices of one input once, for oneDNN, and return the product of rows that are codes with all.

    It maps uint8 about 128 [m, k], m as of padded_rows(), to [m, n] float32, yet without the scales of the rows.
    """
    parts = zip(*(weight.parts for weight in weights), strict=True)
    joined = ExactInt8Codes(*(map(torch.cat, parts) if len(weights) > 1 else weights[0].parts))
    # oneDNN has no kernel for few rows of small matrices, and takes its slow reference there.
    if joined.codes.numel() < _WORTH_PACKING:
        return joined.multiply_codes
    packed: Tensor = torch.ops.onednn.qlinear_prepack(joined.codes, None)
    scales = joined.scales.float()
    return partial(_product_of_codes, packed, scales, torch.zeros(len(scales), dtype=torch.int32))


@dataclass(frozen=True, eq=False)
class PackedInt8Codes(ExactInt8Codes):
    """ExactInt8Codes with a packed copy, made at the first product."""

    def multiply(self, x: Tensor) -> Tensor:
        return self._product(x)

    @cached_property
    def _product(self) -> Callable[[Tensor], Tensor]:
        return packed_product(code_product(self))


def _packed_product(product: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    count = len(x)
    if (padding := padded_rows(count) - count) > 0:
        x = F.pad(x, (0, 0, 0, padding))
    rows, of_rows = _rounded_rows(x)
    answer = product(rows.add_(128).to(torch.uint8)).mul_(of_rows)
    return answer[:count] if padding > 0 else answer


def _product_of_codes(packed: Tensor, scales: Tensor, zeros: Tensor, rows: Tensor) -> Tensor:
    # uint8 about 128: weights are packed for that, and with int8 oneDNN takes its reference, but for AMX.
    # A sum is multiplied once here: of two multiplications kernels differ in the order, and in what they fuse.
    product: Tensor = torch.ops.onednn.qlinear_pointwise.default(
        rows, 1.0, 128, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product


def _rounded_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round rows [m, k] to integers from -127 to 127, each by its own scale [m, 1]."""
    # NaN and infinity make the scale no number, and so the whole row of the product.
    scales = (x.abs().amax(dim=1, keepdim=True) / 127).clamp_(min=torch.finfo(torch.float32).tiny)
    return (x / scales).round_(), scales


@cache
def has_exact_int8() -> bool:
    """Return whether this processor's int8 products are exact sums of integers.

    Without VNNI, AMX or dot products kernels add up pairs in 16 bits, which saturate.
    """
    try:
        codes = torch.full((1024, 260), -128, dtype=torch.int8)
        matrix, largest = ExactInt8Codes(codes, torch.ones(1024, dtype=torch.bfloat16)), torch.full((17, 260), 127.0)
        products = (product(largest) for product in (matrix.multiply, packed_product(code_product(matrix))))
        return all(bool((product == -128 * 127 * 260).all()) for product in products)
    except (AttributeError, RuntimeError, NotImplementedError):  # a torch without these kernels
        return False


@dataclass(frozen=True, eq=False)
class Int4Codes(_CodedRows):
    """A matrix [n, k], two codes per byte, the first in the low half; one scale and one zero per group."""

    pairs: Tensor  # [n, k / 2] uint8
    scales: Tensor  # [n, groups] bfloat16
    zeros: Tensor  # [n, groups] bfloat16, the value of code 8

    @property
    def shape(self) -> tuple[int, int]:
        return self.pairs.shape[0], 2 * self.pairs.shape[1]

    def values(self) -> Tensor:
        group = self.shape[1] // self.scales.shape[1]  # named: without rows, torch could not find it
        grouped = (self._codes().float() - MIDDLE).view(*self.scales.shape, group)
        return (grouped * self.scales.float().unsqueeze(-1) + self.zeros.float().unsqueeze(-1)).view(self.shape)

    def multiply_few(self, x: Tensor) -> Tensor:
        packed, scales_and_zeros = self._packed
        group = self.shape[1] // self.scales.shape[1]
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, group, scales_and_zeros)
        return product[:, : self.shape[0]]

    def multiply_many(self, x: Tensor) -> Tensor:
        return _linear(x, self.values().bfloat16())

    def _codes(self) -> Tensor:
        return torch.stack((self.pairs & 15, self.pairs >> 4), dim=-1).flatten(1)

    @cached_property
    def _packed(self) -> tuple[Tensor, Tensor]:
        """Pack the codes for this processor's kernel."""
        # Never stored in a file: the order depends on the processor.
        padding = (0, 0, 0, -self.shape[0] % INT4_ROWS)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(F.pad(self._codes().int(), padding), 1)
        scales, zeros = F.pad(self.scales, padding), F.pad(self.zeros, padding)
        return packed, torch.stack((scales, zeros), dim=-1).transpose(0, 1).contiguous()


Codes = Int8Codes | Int4Codes


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply rows [m, k] bfloat16 with a matrix [n, k] of values that bfloat16 holds: [m, n] bfloat16."""
    if cpu_has_bf16():
        return F.linear(x, weight.bfloat16())
    # The same products in float32: torch's own for bfloat16 take seven times as long there.
    return F.linear(x.float(), weight.float()).bfloat16()


def aligned(tensor: Tensor) -> Tensor:
    """Copy the tensor if it does not begin where the kernels need it."""
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
