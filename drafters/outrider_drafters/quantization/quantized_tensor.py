"""A tensor subclass of int8 or int4 codes that acts as the float tensor it encodes.

F.linear and F.embedding work on the codes, rows can be sliced and concatenated, and every other operation gets decoded
values: a network stays correct whatever it does with its weights, and is fast where it multiplies rows by them. `dtype`
is that of the encoded tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map_only

from outrider_drafters.quantization.codes import Codes

Handled = Any  # a Tensor, or NotImplemented, which is Any to mypy


class QuantizedWeight(Tensor):
    """A matrix [n, k] of codes. Not trainable; moved off the CPU it becomes a plain tensor."""

    coded: Codes

    @staticmethod
    def __new__(cls: type[QuantizedWeight], coded: Codes, dtype: torch.dtype = torch.float32) -> QuantizedWeight:
        made: QuantizedWeight = Tensor._make_wrapper_subclass(cls, coded.shape, dtype=dtype)
        return made

    def __init__(self, coded: Codes, dtype: torch.dtype = torch.float32) -> None:
        self.coded = coded

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]  # the stub names it otherwise
        return f"QuantizedWeight({type(self.coded).__name__}, shape={list(self.coded.shape)}, dtype={self.dtype})"

    def values(self) -> Tensor:
        """Decode to a plain tensor."""
        return self.coded.values().to(self.dtype)

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply x [..., k] with the rows: [..., n], in x's type."""
        made = self.coded.multiply(x.reshape(-1, x.shape[-1])).to(x.dtype).view(*x.shape[:-1], self.coded.shape[0])
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
                args, kwargs = tree_map_only(QuantizedWeight, QuantizedWeight.values, (args, kwargs))
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # the stub forgets that it is a class method
        cls,
        func: Callable[..., Any],  # Any: as above
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Handle operations below torch's functions, such as nn.Parameter's: `detach` keeps codes, others decode."""
        if func is torch.ops.aten.detach.default:
            return QuantizedWeight(args[0].coded, args[0].dtype)
        args, kwargs = tree_map_only(QuantizedWeight, QuantizedWeight.values, (tuple(args), dict(kwargs or {})))
        return func(*args, **kwargs)

    # With these two methods nn.Module.to swaps the parameter rather than its storage, which it does not have.

    def __tensor_flatten__(self) -> tuple[list[str], Any]:  # Any: opaque to torch
        return [], (self.coded, self.dtype)

    @staticmethod
    def __tensor_unflatten__(
        parts: Mapping[str, Tensor], context: Any, size: object, stride: object
    ) -> QuantizedWeight:
        return QuantizedWeight(*context)


def _tells(func: Callable[..., Any]) -> bool:
    """True if the function reads or sets metadata rather than values."""
    return func in _TELLING or (
        func.__name__ in ("__get__", "__set__") and getattr(func, "__self__", None) not in _VALUED
    )


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Handled:
    return weight.product(x, bias) if isinstance(weight, QuantizedWeight) and not _is(x) else NotImplemented


def _embedding(
    ids: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, *_: object, **__: object
) -> Handled:
    # All but max_norm is for gradients, which codes have not. torch always passes norm_type, set or not.
    if not isinstance(weight, QuantizedWeight) or max_norm is not None:
        return NotImplemented
    return weight.coded.select_rows(ids.flatten()).values().to(weight.dtype).view(*ids.shape, weight.shape[1])


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Handled:
    parts = [tensor for tensor in tensors if isinstance(tensor, QuantizedWeight)]
    if dim != 0 or len(parts) < len(tensors):
        return NotImplemented
    joined = parts[0].coded.concat([part.coded for part in parts[1:]])
    return NotImplemented if joined is None else QuantizedWeight(joined, parts[0].dtype)


def _getitem(weight: Tensor, rows: object) -> Handled:
    is_slice = isinstance(rows, slice) and rows.step is None
    is_list = isinstance(rows, Tensor) and rows.ndim == 1 and rows.dtype == torch.int64
    if not isinstance(weight, QuantizedWeight) or not (is_slice or is_list):
        return NotImplemented
    return QuantizedWeight(weight.coded.select_rows(rows), weight.dtype)  # type: ignore[arg-type]  # checked above


def _to(tensor: Tensor, *args: Any, **kwargs: Any) -> Handled:  # Any: as Tensor.to takes them
    """Convert a quantized weight to another type, or any tensor to the type of a quantized weight."""
    args = tuple(torch.empty(0, dtype=each.dtype, device=each.device) if _is(each) else each for each in args)
    if not isinstance(tensor, QuantizedWeight):
        return tensor.to(*args, **kwargs)
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    if (device is not None and device.type != "cpu") or (dtype is not None and not dtype.is_floating_point):
        return NotImplemented
    return QuantizedWeight(tensor.coded, tensor.dtype if dtype is None else dtype)


def _new(make: Callable[..., Tensor]) -> Callable[..., Handled]:
    """Return a function that makes a tensor of a weight's type and device without decoding the weight."""
    return lambda weight, *args, **kwargs: (
        make(torch.empty(0, dtype=weight.dtype), *args, **kwargs) if _is(weight) else NotImplemented
    )


def _is(value: object) -> bool:
    return isinstance(value, QuantizedWeight)


_OWN: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    F.embedding: _embedding,
    torch.cat: _cat,
    Tensor.__getitem__: _getitem,
    Tensor.to: _to,
    **{make: _new(make) for make in (Tensor.new_empty, Tensor.new_full, Tensor.new_ones, Tensor.new_zeros)},
    Tensor.detach: lambda weight: QuantizedWeight(weight.coded, weight.dtype),
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
