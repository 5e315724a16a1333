"""A model directory's tensors, one by one: safetensors (one file or shards) or a .bin.

Nothing is loaded before it is asked for, and every fault of a file is a UsageError that names it.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from outrider_drafters.config import Config, read_json
from outrider_proto.errors import UsageError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"


def write_model(directory: Path, config: Config, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Save config.json and model.safetensors, the tensors as `dtype`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    stored = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in tensors.items()}
    save_file(stored, directory / SINGLE, metadata={"format": "pt"})


class Checkpoint:
    """The tensors of one directory, by name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._loaded: dict[str, Tensor] = {}
        self._files = self._find()
        self._stored = {name: name for name in self._files}  # what a name is called in its file

    @classmethod
    def holding(cls, directory: Path, tensors: Mapping[str, Tensor]) -> Self:
        """Tensors that were read otherwise; messages name `directory`."""
        checkpoint = cls.__new__(cls)
        checkpoint.directory = directory
        checkpoint._loaded = dict(tensors)
        checkpoint._files = dict.fromkeys(tensors, directory)
        checkpoint._stored = {name: name for name in tensors}
        return checkpoint

    def renamed(self, rename: Callable[[str], str | None]) -> Self:
        """The same tensors under other names; those renamed to None are left out. Raises UsageError for two of one
        name."""
        checkpoint = type(self).__new__(type(self))
        checkpoint.directory, checkpoint._loaded = self.directory, self._loaded
        checkpoint._files, checkpoint._stored = {}, {}
        for name in sorted(self._files):
            new = rename(name)
            if new is None:
                continue
            if new in checkpoint._files:
                raise UsageError(f"{self.directory}: tensors {checkpoint._stored[new]} and {name} are the same one")
            checkpoint._files[new], checkpoint._stored[new] = self._files[name], self._stored[name]
        return checkpoint

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes of a tensor, without reading it. Raises UsageError for one it does not hold."""
        if name not in self._files:
            raise UsageError(f"{self.directory}: lacks tensor {name}")
        stored = self._stored[name]
        if stored in self._loaded:
            return tuple(self._loaded[stored].shape)
        with _opened(self._files[name]) as file:
            return tuple(file.get_slice(stored).get_shape())

    def matrix(self, name: str) -> tuple[int, int]:
        """Rows and columns of a tensor. Raises UsageError for one of other dimensions."""
        shape = self.shape(name)
        if len(shape) != 2:
            raise UsageError(f"{self.directory}: tensor {name} has shape {list(shape)}: need a matrix")
        return shape[0], shape[1]

    def read(self, name: str) -> Tensor:
        """A tensor as stored."""
        stored = self._stored[name]
        if stored in self._loaded:
            return self._loaded[stored]
        with _opened(self._files[name]) as file:
            tensor: Tensor = file.get_tensor(stored)
        return tensor

    def _find(self) -> dict[str, Path]:
        single, index, pickled = (self.directory / name for name in (SINGLE, INDEX, PICKLED))
        if single.is_file():
            return _names_in(single)
        if index.is_file():
            return self._shards(index)
        if pickled.is_file():
            self._loaded = _unpickle(pickled)
            return dict.fromkeys(self._loaded, pickled)
        raise UsageError(f"{self.directory}: has neither {SINGLE} nor {INDEX} nor {PICKLED}")

    def _shards(self, index: Path) -> dict[str, Path]:
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise UsageError(f"{index}: has no weight_map")
        held: dict[str, Path] = {}
        for shard in sorted(set(weight_map.values())):
            held |= _names_in(self.directory / shard)
        for name, shard in weight_map.items():
            if name not in held:
                raise UsageError(f"{index}: places {name} in {shard}, which does not hold it")
        return held


def _names_in(path: Path) -> dict[str, Path]:
    with _opened(path) as file:
        return dict.fromkeys(file.keys(), path)


def _opened(path: Path) -> Any:  # Any: safetensors ships no types for its handle
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path}: not a readable safetensors file ({error})") from error


def _unpickle(path: Path) -> dict[str, Tensor]:
    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UsageError(f"{path}: not a plain file of tensors ({error})") from error
    if not isinstance(value, dict) or not all(isinstance(item, Tensor) for item in value.values()):
        raise UsageError(f"{path}: need a dict of tensors")
    return value
