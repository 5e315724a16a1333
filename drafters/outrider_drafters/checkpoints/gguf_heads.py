"""Drafters published as GGUF: where such a file lies, and which family's translation it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from outrider_drafters.checkpoints import eagle3_gguf
from outrider_drafters.readers.config import Config
from outrider_drafters.readers.gguf_file import SUFFIX, GgufFile
from outrider_proto.errors import UsageError

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
