"""int8 and int4 codes of a matrix, and products of rows with them.

int8   code * scale, one scale per row                            1 byte per value
int4   (code - 8) * scale + zero, both per group of a row         1/2 byte per value and 4 bytes per group

Products of few rows are torch's own kernels. They round activations to bfloat16 and no further, each row on its own, so
that a node's logits depend on no other node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.processor import cpu_has_bf16

LARGEST = 127.5  # half the range of int8
MIDDLE = 8  # of int4's codes 0 .. 15
# Limits of torch 2.13's kernels: both crash on matrices that do not begin at a multiple of ALIGNMENT bytes, the int8
# one reads past rows that are not a multiple of INT8_WIDTH values, the int4 one takes multiples of INT4_ROWS rows.
ALIGNMENT = 64
INT8_WIDTH = 16
INT4_ROWS = 16


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


@dataclass(frozen=True, eq=False)
class Int8Codes(_CodedRows):
    """A matrix [n, k] as int8 codes with one scale per row."""

    codes: Tensor  # [n, k] int8
    scales: Tensor  # [n] bfloat16

    def __post_init__(self) -> None:
        # Tensors of a memory-mapped file begin anywhere; the kernel would crash.
        object.__setattr__(self, "codes", aligned(self.codes))

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
        return torch.ops.aten._weight_int8pack_mm(x, self.codes, self.scales)  # type: ignore[no-any-return]  # torch.ops

    def multiply_many(self, x: Tensor) -> Tensor:
        """Multiply many rows: the same product by another kernel."""
        # Exact codes: 8 bits fit into bfloat16's mantissa. Scaling them first would round every weight.
        return _linear(x, self.codes) * self.scales


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
