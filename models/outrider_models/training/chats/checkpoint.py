"""A chat run's checkpoint on disk, as accelerate writes it: made beside its place and moved there whole."""

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
    """Whether there is something to resume from."""
    return _newest(directory).is_dir()


def save_state(accelerator: Accelerator, directory: Path) -> None:
    """Replace the checkpoint; every process takes part."""
    partial, old = directory / f"{_STATE}.partial", directory / f"{_STATE}.old"
    accelerator.wait_for_everyone()
    accelerator.save_state(str(partial), safe_serialization=False)  # safetensors knows no shared tensors
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(old, ignore_errors=True)
        if (directory / _STATE).is_dir():
            (directory / _STATE).rename(old)
        partial.rename(directory / _STATE)
        shutil.rmtree(old, ignore_errors=True)
    accelerator.wait_for_everyone()


def load_state(accelerator: Accelerator, directory: Path) -> None:
    accelerator.load_state(str(_newest(directory)))


def write_config(directory: Path, config: dict[str, Any]) -> None:  # Any: JSON values
    """Write what the run is made of."""
    (directory / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def check_config(directory: Path, config: dict[str, Any]) -> None:  # Any: as above
    """Raise UsageError naming what differs from the run that is to be resumed."""
    before = json.loads((directory / _CONFIG).read_text())
    now = json.loads(json.dumps(config))
    if differing := sorted(name for name in {*before, *now} if before.get(name) != now.get(name)):
        raise UsageError(f"--resume: {directory} was begun with another {', '.join(differing)}; start anew elsewhere")


def _newest(directory: Path) -> Path:
    """The checkpoint, or the one before where a crash came between."""
    newest, old = directory / _STATE, directory / f"{_STATE}.old"
    return old if old.is_dir() and not newest.is_dir() else newest
