"""A drafter's files as a family reads them: configuration, tensors, options, and the checks all families need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from outrider_drafters.checkpoints import eagle3_gguf
from outrider_drafters.checkpoints.source import DrafterOptions, DrafterSource
from outrider_drafters.checkpoints.target_weights import TargetSizes, resolve_dir
from outrider_drafters.readers.checkpoint import Checkpoint
from outrider_drafters.readers.config import Config, config_int, read_config
from outrider_drafters.readers.gguf_file import SUFFIX, GgufFile
from outrider_proto.errors import UsageError

Network = TypeVar("Network", bound=nn.Module)

IGNORED = ".rotary_emb.inv_freq"  # a buffer some older writers saved; it follows from rope_theta
MAX_NAMED = 8  # names in a message


@dataclass(frozen=True, slots=True)
class DrafterFiles:
    """One drafter directory, opened. Every method raises UsageError that names the directory and the offender."""

    directory: Path
    config: Config
    checkpoint: Checkpoint
    options: DrafterOptions

    @classmethod
    def open(cls, source: DrafterSource) -> DrafterFiles:
        """A directory, a hub name, or a GGUF file, whose path then stands for the directory."""
        place = Path(source.name).expanduser()
        directory = place if place.is_file() else resolve_dir(source.name)
        if (gguf := gguf_at(directory)) is not None:
            config, tensors = read_head(gguf)
            return cls(gguf, config, Checkpoint.holding(gguf, tensors), source.options)
        return cls(directory, read_config(directory), Checkpoint(directory, heads_first=True), source.options)

    @classmethod
    def none(cls, source: DrafterSource) -> DrafterFiles:
        """Of a drafter without files: its options, and nothing else."""
        place = Path(source.name)
        return cls(place, {}, Checkpoint.holding(place, {}), source.options)

    @property
    def names(self) -> frozenset[str]:
        return self.checkpoint.names

    def with_checkpoint(self, checkpoint: Checkpoint) -> DrafterFiles:
        """The same with its tensors under other names."""
        return replace(self, checkpoint=checkpoint)

    def fault(self, message: str) -> UsageError:
        return UsageError(f"{self.directory}: {message}")

    def need(self, required: frozenset[str]) -> None:
        """Refuse a file that lacks any of these tensors."""
        if missing := sorted(required - self.names):
            raise self.fault(f"lacks tensors {listed(missing)}")

    def need_equal(self, what: str, drafter: int, target: int) -> None:
        """Refuse a drafter one of whose sizes is not the target's."""
        if drafter != target:
            raise self.fault(f"{what} is {drafter}, the target's {target}: made for another target")

    def need_vocabulary(self, target: TargetSizes) -> None:
        self.need_equal("vocab_size", config_int(self.config, "vocab_size", target.vocab), target.vocab)

    def fill(self, network: Network, like: Tensor | None = None, also_known: frozenset[str] = frozenset()) -> Network:
        """Read every tensor of a network made on the meta device, as stored or moved to where and what `like` is.
        Frozen, for inference."""
        network.load_state_dict(self.tensors_for(network, also_known), assign=True)
        network.eval().requires_grad_(False)
        return network if like is None else network.to(like.device, like.dtype)

    def tensors_for(self, network: nn.Module, also_known: frozenset[str] = frozenset()) -> dict[str, Tensor]:
        """Every tensor of a network, as stored; missing, unknown, misshapen and damaged ones are refused."""
        wanted = network.state_dict()
        self.need(frozenset(wanted))
        held = {name for name in self.names if not name.endswith(IGNORED)}
        if unknown := sorted(held - set(wanted) - also_known):
            raise self.fault(f"holds unknown tensors {listed(unknown)}")
        for name, tensor in wanted.items():
            if self.checkpoint.shape(name) != tuple(tensor.shape):
                raise self.fault(
                    f"tensor {name} has shape {list(self.checkpoint.shape(name))}: need {list(tensor.shape)}"
                )
        tensors = {name: self.checkpoint.read(name) for name in wanted}
        for name, tensor in tensors.items():
            if tensor.is_floating_point() != wanted[name].is_floating_point():
                raise self.fault(f"tensor {name} is of type {tensor.dtype}: need {wanted[name].dtype}")
            if type(tensor) is Tensor and not torch.isfinite(tensor).all():
                raise self.fault(f"tensor {name} holds values that are no numbers: the file is damaged")
        return tensors


def listed(names: list[str]) -> str:
    """Names for a message, the first few."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


OTHER_WEIGHTS = (".safetensors", ".bin", ".pt")  # a directory that holds these is read as one of them
Translated = tuple[Config, Mapping[str, Tensor]]
TRANSLATIONS: Mapping[str, Callable[[GgufFile], Translated]] = {eagle3_gguf.ARCHITECTURE: eagle3_gguf.translated}


def gguf_at(path: Path) -> Path | None:
    """The GGUF file that a path is, or that a directory holds as its only weights. Raises UsageError for several."""
    if path.is_file():
        return path if path.suffix == SUFFIX else None
    if not path.is_dir():
        return None
    held = sorted(path.iterdir())
    found = [file for file in held if file.suffix == SUFFIX]
    if not found or any(file.suffix in OTHER_WEIGHTS for file in held):
        return None
    if len(found) > 1:
        raise UsageError(f"{path}: holds {', '.join(file.name for file in found)}: name one of these files")
    return found[0]


def read_head(path: Path) -> Translated:
    """What config.json and the tensors would be. Raises UsageError for a file that is no drafter."""
    file = GgufFile.read(path, tuple(TRANSLATIONS))
    return TRANSLATIONS[file.architecture](file)
