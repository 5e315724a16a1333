"""Checkpoint of a run on chats, as accelerate writes it. It is replaced at once, so that it is always complete."""

import json
import shutil
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from outrider_proto.errors import UsageError

_STATE = "state"
# Part of the checkpoint format; config.json is the exported drafter's own, in the same directory.
_CONFIG = "course.json"


def has_state(directory: Path) -> bool:
    """Return whether there is a checkpoint to resume from."""
    return _newest(directory).is_dir()


def save_state(accelerator: Accelerator, directory: Path) -> None:
    """Replace the checkpoint; every process must call this."""
    partial, old = directory / f"{_STATE}.partial", directory / f"{_STATE}.old"
    accelerator.wait_for_everyone()
    accelerator.save_state(str(partial), safe_serialization=False)  # safetensors refuses shared tensors
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(old, ignore_errors=True)
        # A directory cannot be replaced in one step: after a crash in between, _newest() finds the old one.
        if (directory / _STATE).is_dir():
            (directory / _STATE).rename(old)
        partial.rename(directory / _STATE)
        shutil.rmtree(old, ignore_errors=True)
    accelerator.wait_for_everyone()


def load_state(accelerator: Accelerator, directory: Path) -> None:
    accelerator.load_state(str(_newest(directory)))


def write_config(directory: Path, config: dict[str, Any]) -> None:  # Any: JSON values
    """Write the settings that the result of a run depends on."""
    (directory / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def check_config(directory: Path, config: dict[str, Any]) -> None:  # Any: as above
    """Raise UsageError that names the settings that differ from those of the run to resume."""
    before = json.loads((directory / _CONFIG).read_text())
    # Through JSON, as the other one went: tuples become lists.
    now = json.loads(json.dumps(config))
    if differing := sorted(name for name in {*before, *now} if before.get(name) != now.get(name)):
        raise UsageError(f"--resume: {directory} was started with another {', '.join(differing)}: use a new --out")


def _newest(directory: Path) -> Path:
    """Return the checkpoint, or the previous one if a crash came between two renames."""
    newest, old = directory / _STATE, directory / f"{_STATE}.old"
    return old if old.is_dir() and not newest.is_dir() else newest
