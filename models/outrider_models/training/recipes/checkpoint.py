"""Training state on disk: written beside its place and renamed over it, so that a reader never sees half a file."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from outrider_proto.files import atomic_path

_NAME = "checkpoint.pt"


@dataclass(slots=True)
class Position:
    """How far a run is: what it has seen, where it reads next, how long it took."""

    shard: int = 0
    batch: int = 0  # next batch within the shard
    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0


def save_checkpoint(directory: Path, position: Position, states: dict[str, Any]) -> None:  # Any: torch state dicts
    """Replace the checkpoint of `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    payload = {"position": asdict(position), "torch_rng": torch.get_rng_state(), **states}
    with atomic_path(directory / _NAME) as partial:
        torch.save(payload, partial)


def load_checkpoint(directory: Path) -> tuple[Position, dict[str, Any]]:
    """The position and states; the generator of torch is set back. Raises FileNotFoundError if there is none."""
    payload = torch.load(directory / _NAME, weights_only=True)
    torch.set_rng_state(payload.pop("torch_rng"))
    return Position(**payload.pop("position")), payload


def has_checkpoint(directory: Path) -> bool:
    return (directory / _NAME).exists()
