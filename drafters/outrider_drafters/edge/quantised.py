"""A linear weight of int8 or int4 codes that acts as the float tensor it stands for.

int8   code * scale, a scale for every row                       1 byte a value
int4   (code - 8) * scale + zero, both for every group of a row   1/2 byte a value and 4 bytes a group

F.linear and F.embedding work on the codes, rows can be cut and joined, and every other operation gets the values: a
network computes what it should whatever it does with its weights, and fast where it multiplies rows by them. The
products are torch's own kernels for few rows; activations are rounded to bfloat16 in them and never further, each row
for itself, so that a node's logits depend on no other node. `dtype` is that of the tensor it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map_only

MIDDLE = 8  # of int4's codes 0 .. 15
ALIGNMENT = 64  # bytes: where matrices begin elsewhere, the kernels of torch 2.13 fault
INT8_WIDTH = 16  # and where rows are no multiple of so many values, its int8 kernel reads past them
INT4_ROWS = 16  # its int4 kernel takes multiples of so many
FEW_ROWS = 16  # up to here torch's kernels for few rows are faster than a product with codes as bfloat16


class Codes(Protocol):
    """How values are coded. Everything is for rows of a matrix [n, k]."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def num_bytes(self) -> int: ...

    def values(self) -> Tensor:
        """[n, k] float32."""
        ...

    def few(self, x: Tensor) -> Tensor:
        """Products [m, n] of few rows [m, k], bfloat16."""
        ...

    def many(self, x: Tensor) -> Tensor:
        """The same for many rows."""
        ...

    def picked(self, rows: Tensor | slice) -> Self: ...

    def joined(self, others: Sequence[Codes]) -> Codes | None:
        """These rows and then the others'; None for rows of another kind."""
        ...


@dataclass(frozen=True, eq=False)
class Int8Codes:
    """One scale a row."""

    codes: Tensor  # [n, k] int8
    scales: Tensor  # [n] bfloat16

    def __post_init__(self) -> None:
        object.__setattr__(self, "codes", _aligned(self.codes))  # a mapped file's are not

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def num_bytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def values(self) -> Tensor:
        return self.codes.float() * self.scales.float().unsqueeze(-1)

    def few(self, x: Tensor) -> Tensor:
        if self.codes.shape[1] % INT8_WIDTH:
            return self.many(x)
        return torch.ops.aten._weight_int8pack_mm(x, self.codes, self.scales)  # type: ignore[no-any-return]  # torch.ops

    def many(self, x: Tensor) -> Tensor:
        return F.linear(x, self.codes.bfloat16()) * self.scales  # 8 bits fit into bfloat16's mantissa

    def picked(self, rows: Tensor | slice) -> Int8Codes:
        return Int8Codes(self.codes[rows], self.scales[rows])

    def joined(self, others: Sequence[Codes]) -> Codes | None:
        alike = [self, *(other for other in others if isinstance(other, Int8Codes))]
        if len(alike) <= len(others):
            return None
        return Int8Codes(torch.cat([each.codes for each in alike]), torch.cat([each.scales for each in alike]))


@dataclass(frozen=True, eq=False)
class Int4Codes:
    """Two codes a byte, the first in the low half; one scale and one zero a group."""

    pairs: Tensor  # [n, k / 2] uint8
    scales: Tensor  # [n, groups] bfloat16
    zeros: Tensor  # [n, groups] bfloat16, the value of code 8

    @property
    def shape(self) -> tuple[int, int]:
        return self.pairs.shape[0], 2 * self.pairs.shape[1]

    @property
    def num_bytes(self) -> int:
        return self.pairs.nbytes + self.scales.nbytes + self.zeros.nbytes

    def values(self) -> Tensor:
        grouped = (self._codes().float() - MIDDLE).view(*self.scales.shape, -1)
        return (grouped * self.scales.float().unsqueeze(-1) + self.zeros.float().unsqueeze(-1)).view(self.shape)

    def few(self, x: Tensor) -> Tensor:
        if self.shape[0] % INT4_ROWS:
            return self.many(x)
        packed, scales_and_zeros = self._packed
        group = self.shape[1] // self.scales.shape[1]
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, group, scales_and_zeros)
        return product

    def many(self, x: Tensor) -> Tensor:
        return F.linear(x, self.values().bfloat16())

    def picked(self, rows: Tensor | slice) -> Int4Codes:
        return Int4Codes(self.pairs[rows], self.scales[rows], self.zeros[rows])

    def joined(self, others: Sequence[Codes]) -> Codes | None:
        alike = [self, *(other for other in others if isinstance(other, Int4Codes))]
        if len(alike) <= len(others) or len({each.scales.shape[1] for each in alike}) > 1:
            return None
        return Int4Codes(*(torch.cat([getattr(each, part) for each in alike]) for part in ("pairs", "scales", "zeros")))

    def _codes(self) -> Tensor:
        return torch.stack((self.pairs & 15, self.pairs >> 4), dim=-1).flatten(1)

    @cached_property
    def _packed(self) -> tuple[Tensor, Tensor]:
        """As this processor's kernel wants them; another one's may want another order, so it is never stored."""
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(self._codes().int(), 1)
        return packed, torch.stack((self.scales, self.zeros), dim=-1).transpose(0, 1).contiguous()


def _aligned(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


class QuantisedWeight(Tensor):
    """Codes [n, k] in a tensor's place. Not trainable; on another device than the CPU it becomes a plain tensor."""

    coded: Codes

    @staticmethod
    def __new__(cls: type[QuantisedWeight], coded: Codes, dtype: torch.dtype = torch.float32) -> QuantisedWeight:
        made: QuantisedWeight = Tensor._make_wrapper_subclass(cls, coded.shape, dtype=dtype)
        return made

    def __init__(self, coded: Codes, dtype: torch.dtype = torch.float32) -> None:
        self.coded = coded

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # the stub names it otherwise
        return f"QuantisedWeight({type(self.coded).__name__}, shape={list(self.coded.shape)}, dtype={self.dtype})"

    def values(self) -> Tensor:
        """The tensor it stands for."""
        return self.coded.values().to(self.dtype)

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., k] by the rows: [..., n], of x's type."""
        rows = _aligned(x.reshape(-1, x.shape[-1]).bfloat16().contiguous())
        multiply = self.coded.few if len(rows) <= FEW_ROWS else self.coded.many
        made = multiply(rows).to(x.dtype).view(*x.shape[:-1], self.coded.shape[0])
        return made if bias is None else made + bias

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],  # Any: whatever torch function it is
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if (own := _OWN.get(func)) is not None:
                made = own(*args, **(kwargs or {}))
                if made is not NotImplemented:
                    return made
            if not _tells(func):
                args, kwargs = tree_map_only(QuantisedWeight, QuantisedWeight.values, (args, kwargs))
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # the stub forgets that it is a class method
        cls,
        func: Callable[..., Any],  # Any: as above
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """What torch does below its functions, as nn.Parameter does: `detach` gives codes, all else values."""
        if func is torch.ops.aten.detach.default:
            return QuantisedWeight(args[0].coded, args[0].dtype)
        args, kwargs = tree_map_only(QuantisedWeight, QuantisedWeight.values, (tuple(args), dict(kwargs or {})))
        return func(*args, **kwargs)

    # These two make nn.Module.to exchange the parameter rather than its storage, which it has none of.

    def __tensor_flatten__(self) -> tuple[list[str], Any]:  # Any: opaque to torch
        return [], (self.coded, self.dtype)

    @staticmethod
    def __tensor_unflatten__(parts: Mapping[str, Tensor], told: Any, size: object, stride: object) -> QuantisedWeight:
        return QuantisedWeight(*told)


def _tells(func: Callable[..., Any]) -> bool:
    """Whether it asks for what a tensor is rather than for its values, or marks it."""
    return func in _TELLING or (
        func.__name__ in ("__get__", "__set__") and getattr(func, "__self__", None) not in _VALUED
    )


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    return weight.product(x, bias) if isinstance(weight, QuantisedWeight) and not _is(x) else NotImplemented


def _embedding(ids: Tensor, weight: Tensor, *more: object, **named: object) -> Any:
    if not isinstance(weight, QuantisedWeight) or any(more) or any(named.values()):
        return NotImplemented
    return weight.coded.picked(ids.flatten()).values().to(weight.dtype).view(*ids.shape, -1)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    parts = [tensor for tensor in tensors if isinstance(tensor, QuantisedWeight)]
    if dim != 0 or len(parts) < len(tensors):
        return NotImplemented
    joined = parts[0].coded.joined([part.coded for part in parts[1:]])
    return NotImplemented if joined is None else QuantisedWeight(joined, parts[0].dtype)


def _getitem(weight: Tensor, rows: object) -> Any:
    if not isinstance(weight, QuantisedWeight) or not isinstance(rows, slice) or rows.step is not None:
        return NotImplemented
    return QuantisedWeight(weight.coded.picked(rows), weight.dtype)


def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """A quantised weight as another type; or any tensor as the type of one."""
    args = tuple(torch.empty(0, dtype=each.dtype, device=each.device) if _is(each) else each for each in args)
    if not isinstance(tensor, QuantisedWeight):
        return tensor.to(*args, **kwargs)
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    if (device is not None and device.type != "cpu") or (dtype is not None and not dtype.is_floating_point):
        return NotImplemented
    return QuantisedWeight(tensor.coded, tensor.dtype if dtype is None else dtype)


def _is(value: object) -> bool:
    return isinstance(value, QuantisedWeight)


_OWN: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    F.embedding: _embedding,
    torch.cat: _cat,
    Tensor.__getitem__: _getitem,
    Tensor.to: _to,
    Tensor.detach: lambda weight: QuantisedWeight(weight.coded, weight.dtype),
}
_VALUED = frozenset({Tensor.T, Tensor.mT, Tensor.H, Tensor.mH, Tensor.data})
_TELLING = frozenset(
    {
        Tensor.__len__,
        Tensor.dim,
        Tensor.element_size,
        Tensor.is_complex,
        Tensor.is_floating_point,
        Tensor.numel,
        Tensor.requires_grad_,
        Tensor.size,
        torch._has_compatible_shallow_copy_type,
    }
)
