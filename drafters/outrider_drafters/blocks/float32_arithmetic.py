"""Passes in float32 through a model of bfloat16 or float16 weights, or of codes, without a copy of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_NARROW = (torch.bfloat16, torch.float16)
# Values of a weight that are widened at once: on a CPU no more than its cache holds, which halves the time.
_WIDENED, _WIDENED_ON_DEVICE = 2**18, 2**26
# All that demand one type of their arguments; the others take the wider one by themselves.
_OF_ONE_TYPE = {
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm, torch.einsum),
    *(torch.addmm, torch.baddbmm, F.layer_norm, F.rms_norm, F.group_norm, torch.conv1d, F.bilinear),
}
_GROUPED = {getattr(torch, "_grouped_mm", None), getattr(F, "grouped_mm", None)}


class Float32Arithmetic(TorchFunctionMode):
    """While it is entered, embeddings and all computed from them are float32. `coded`: which codes are widened, too."""

    def __init__(self, coded: Callable[[Tensor], bool] = lambda weight: False) -> None:
        super().__init__()
        self._coded = coded

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            return _linear(*args, **kwargs, coded=self._coded)
        if func in _GROUPED:
            return _grouped_product(*args, **kwargs)
        if func in _OF_ONE_TYPE:
            return func(*map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()})
        result = func(*args, **kwargs)
        if func is F.embedding:
            return _wide(result)
        # A cast to the weights' type would round what has not been.
        if func in (Tensor.to, Tensor.type_as) and result.dtype in _NARROW and args[0].dtype == torch.float32:
            return args[0].to(result.device)
        return result


def is_plain(model: Any) -> bool:  # Any: transformers' model, which not every user of this package has
    """Return whether its weights are numbers that can be widened."""
    return getattr(model, "hf_quantizer", None) is None


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _NARROW else value


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, coded: Callable[[Tensor], bool]) -> Tensor:
    """Map x [..., in] to [..., out], a part of the weight at a time."""
    x = _wide(x)
    if weight.dtype not in _NARROW and not coded(weight):
        return F.linear(x, weight, bias)
    at_once = _WIDENED if x.device.type == "cpu" else _WIDENED_ON_DEVICE
    # One room for all parts: of rooms of their own, freed in between, the heap grows by the size of the weight.
    room = x.new_empty(min(len(weight), max(1, at_once // weight.shape[1])), weight.shape[1])
    product = x.new_empty(*x.shape[:-1], len(weight))
    for first in range(0, len(weight), len(room)):
        part = weight[first : first + len(room)]
        # Codes by their own method: through torch's dispatcher they take several times as long.
        values = part.values() if coded(part) else room[: len(part)].copy_(part)
        product[..., first : first + len(room)] = F.linear(x, values)
    return product if bias is None else product + bias


def _grouped_product(x: Tensor, weight: Tensor, *, offs: Tensor, bias: None = None, **_: None) -> Tensor:
    """Multiply x [n, in], of which an expert's rows end at its offset, with the experts' weights [experts, in, out]."""
    assert bias is None  # of which torch 2.13 knows none
    products, first = [], 0
    for expert, stop in enumerate(offs.tolist()):
        products.append(_wide(x[first:stop]) @ _wide(weight[expert]))
        first = stop
    return torch.cat([*products, x.new_zeros(len(x) - first, weight.shape[2], dtype=torch.float32)])
