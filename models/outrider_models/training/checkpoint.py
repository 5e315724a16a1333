"""Checkpoint of a run and its settings. Files are replaced at once, so that a kill leaves a whole run to resume."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from outrider_drafters.readers.checkpoint import WRITE_ERRORS
from outrider_proto.errors import OutriderError, UsageError
from outrider_proto.files import atomic_path, read_json, write_atomically

_CHECKPOINT = "checkpoint.pt"
_CONFIG = "course.json"  # config.json is the exported drafter's own, in the same directory


@dataclass(slots=True)
class Position:
    """Position of a run: what it has read, and the time it took."""

    shard: int = 0
    shard_updates: int = 0  # done within the shard
    update: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0


def save_checkpoint(directory: Path, position: Position, states: dict[str, Any]) -> None:  # Any: torch state dicts
    """Replace the checkpoint of `directory`. Raises OutriderError."""
    try:
        with atomic_path(directory / _CHECKPOINT) as partial:
            torch.save({"position": asdict(position), **states}, partial)
    except (OSError, RuntimeError) as error:  # torch's writer raises the latter on a full disk
        raise OutriderError(f"{directory}: the checkpoint cannot be written ({error}): free some space") from None


def save_model(directory: Path, export: Callable[[Path], None]) -> None:
    """Export the trained model into `directory`. Raises OutriderError."""
    try:
        export(directory)
    except WRITE_ERRORS as error:
        raise OutriderError(f"{directory}: the model cannot be written ({error}): free some space") from None


def load_checkpoint(directory: Path) -> tuple[Position, dict[str, Any]] | None:
    """Load position and states; None if the run has not come to its first checkpoint."""
    if not (directory / _CHECKPOINT).exists():
        return None
    # A checkpoint is data: without weights_only, unpickling could run code.
    states = torch.load(directory / _CHECKPOINT, weights_only=True, map_location="cpu")
    return Position(**states.pop("position")), states


def has_run(directory: Path) -> bool:
    """Return True if a run has begun in the directory, and can be resumed."""
    return (directory / _CONFIG).exists()


def remove_checkpoint(directory: Path) -> None:
    """Leave the model alone: a run that is done need not be resumed."""
    (directory / _CHECKPOINT).unlink(missing_ok=True)


def check_output_dir(out: Path, resume: bool) -> None:
    """Raise UsageError unless a run may write to `out` or resume from it."""
    if resume and not has_run(out):
        raise UsageError(f"--resume: {out} holds no checkpoint")
    if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: exists and is not an empty directory; --resume continues from a checkpoint")


def write_config(directory: Path, config: dict[str, Any]) -> None:  # Any: JSON values
    """Write the settings that the result of a run depends on, and remove what a killed run left half written."""
    for partial in directory.glob("*.partial"):
        partial.unlink()
    write_atomically(directory / _CONFIG, json.dumps(config, indent=2) + "\n")


def check_config(directory: Path, config: dict[str, Any]) -> None:  # Any: as above
    """Raise UsageError that names the settings that differ from those of the run to resume."""
    before = read_json(directory / _CONFIG)
    if not isinstance(before, dict):
        raise UsageError(f"{directory / _CONFIG}: holds no settings of a run: use a new --out")
    # Through JSON, as the other one went: tuples become lists.
    now = json.loads(json.dumps(config))
    if differing := sorted(name for name in {*before, *now} if before.get(name) != now.get(name)):
        raise UsageError(f"--resume: {directory} was started with another {', '.join(differing)}: use a new --out")
