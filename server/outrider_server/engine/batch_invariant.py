"""Passes whose results do not depend on what else they compute: the switch `--batch-invariant`.

In bfloat16 and float16 a product over 17 rows adds up in another order than one over a single row, rounds another way,
and where two tokens are about equally likely the argmax may change: drafted, batched and plain answers then part. Here
every row is computed alike wherever it stands: linear layers take their rows in products of a fixed size, and attention
adds up in float64, where the order changes less than the rounding to the model's type can see. Norms, activations and
rotations work on a row at a time anyway. The same idea on a GPU: Horace He and Thinking Machines Lab, "Defeating
Nondeterminism in LLM Inference" (2025).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_PRODUCT_ROWS = 32  # a tree of 16 with its chain is one product; a single row costs as much as 32


class BatchInvariantLinear(TorchFunctionMode):
    """While it is entered, linear layers compute their rows in products of _PRODUCT_ROWS."""

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return (_in_products if func is F.linear else func)(*args, **(kwargs or {}))


def _in_products(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Map x [..., in] to [..., out]."""
    rows = x.reshape(-1, x.shape[-1])
    padded = F.pad(rows, (0, 0, 0, -len(rows) % _PRODUCT_ROWS))
    products = [F.linear(part, weight, bias) for part in torch.split(padded, _PRODUCT_ROWS)]
    return torch.cat(products)[: len(rows)].view(*x.shape[:-1], len(weight))
