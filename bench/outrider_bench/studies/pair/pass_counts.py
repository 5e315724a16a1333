"""Counts what a pass dispatches to a device, and what goes between device and host.

The device may be a CPU, where transfers cost nothing: they are counted as calls.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_NO_KERNEL = frozenset(
    {"aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided", "aten::_unsafe_view", "aten::detach_"}
)
_READS = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2", "aten::equal"})
_FROM_NUMPY = torch.from_numpy


@dataclass(slots=True)
class PassCounts:
    """What was counted in one pass of `num_layers` layers, the first `num_first` of them apart."""

    num_first: int
    num_layers: int = 0
    layers: int = 0  # begun so far
    in_layer: bool = False
    layer_kernels: Counter[str] = field(default_factory=Counter)  # of the last layers, one of each kind
    first_kernels: Counter[str] = field(default_factory=Counter)  # of the first ones
    kernels: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    uploads: int = 0
    late_uploads: int = 0  # behind the layers, before anything is read: there the host would wait for the pass
    # What the host has, by storage: reading it again is free. Held, or its memory would be that of another tensor.
    read: dict[int, Tensor] = field(default_factory=dict)

    @property
    def here(self) -> Counter[str]:
        """The counter of where the pass is."""
        if not self.in_layer:
            return self.kernels
        return self.first_kernels if self.layers <= self.num_first else self.layer_kernels

    def add_upload(self) -> None:
        self.uploads += 1
        self.late_uploads += 0 < self.num_layers == self.layers and not self.in_layer and not self.reads


class DispatchCounter(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch
    """Counts operations that reach a device; composite ones by what they consist of."""

    def __init__(self, counts: PassCounts) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch
        self._counts = counts

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            # In inference mode they come here whole.
            with self:
                return func.decompose(*args, **(kwargs or {}))
        name = func.name().split(".")[0]
        if name in _READS:
            self._counts.reads[name] += 1
        elif name not in _NO_KERNEL and not _is_view(func):
            self._counts.here[name] += 1
        return func(*args, **(kwargs or {}))


class TransferCounter(TorchFunctionMode):
    """Counts transfers. On a CPU they are calls that do nothing, and never reach the dispatcher."""

    def __init__(self, counts: PassCounts) -> None:
        super().__init__()
        self._counts = counts

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in ("tensor", "as_tensor"):
            self._counts.add_upload()
            if "device" not in (kwargs or {}):
                self._counts.read[_storage(result)] = result
        elif name in ("cpu", "numpy", "tolist") and _storage(args[0]) not in self._counts.read:
            self._counts.reads[name] += 1
            self._counts.read[_storage(args[0])] = args[0]
        return result

    def __enter__(self) -> Self:
        # No mode sees this one.
        torch.from_numpy = self._from_numpy  # type: ignore[assignment] # its argument has another name
        super().__enter__()  # type: ignore[no-untyped-call] # torch
        return self

    def __exit__(self, *why: Any) -> None:
        torch.from_numpy = _FROM_NUMPY
        super().__exit__(*why)  # type: ignore[no-untyped-call] # torch

    def _from_numpy(self, array: NDArray[Any]) -> Tensor:
        made = _FROM_NUMPY(array)
        self._counts.add_upload()
        self._counts.read[_storage(made)] = made
        return made


def _is_view(func: Any) -> bool:  # a torch operator
    return any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
