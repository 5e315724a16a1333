"""Training state on disk. The file is replaced at once, so that a reader never sees half of it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from outrider_proto.files import atomic_path

_NAME = "checkpoint.pt"


@dataclass(slots=True)
class Position:
    """Position of a run: what it has read, where it reads next, and the time it took."""

    shard: int = 0
    batch: int = 0  # next batch within the shard
    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0


def save_checkpoint(directory: Path, position: Position, states: dict[str, Any]) -> None:  # Any: torch state dicts
    """Replace the checkpoint of `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    # Masks and noise come from torch's generator: a resumed run has to continue its sequence.
    payload = {"position": asdict(position), "torch_rng": torch.get_rng_state(), **states}
    with atomic_path(directory / _NAME) as partial:
        torch.save(payload, partial)


def load_checkpoint(directory: Path) -> tuple[Position, dict[str, Any]]:
    """Load position and states, and restore torch's generator. Raises FileNotFoundError."""
    # A checkpoint is data: without weights_only, unpickling could run code.
    payload = torch.load(directory / _NAME, weights_only=True)
    torch.set_rng_state(payload.pop("torch_rng"))
    return Position(**payload.pop("position")), payload


def has_checkpoint(directory: Path) -> bool:
    return (directory / _NAME).exists()
