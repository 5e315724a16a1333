"""What is embedded: parameters, sizes on disk, fingerprints, scores."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from outrider_drafters.checkpoints.fingerprint import target_fingerprint, tokenizer_fingerprint
from outrider_drafters.readers.checkpoint import Checkpoint
from outrider_models.core.embedded import model_dirs, scores_file, target_dir


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One embedded model; `fingerprint` is None for a drafter."""

    name: str
    num_parameters: int
    size_bytes: int
    fingerprint: str | None


def embedded_models() -> list[ModelInfo]:
    """The models present in the package, target first."""
    return [_describe(name, path) for name, path in model_dirs().items()]


def tokenizer_mark() -> str:
    """Fingerprint of the embedded tokenizer."""
    return tokenizer_fingerprint(target_dir())


def embedded_scores() -> dict[str, dict[str, dict[str, int]]]:
    """model -> family -> {passed, total}; empty when none were recorded."""
    path = scores_file()
    return json.loads(path.read_text()) if path.is_file() else {}


def _describe(name: str, directory: Path) -> ModelInfo:
    checkpoint = Checkpoint(directory)
    return ModelInfo(
        name=name,
        num_parameters=sum(math.prod(checkpoint.shape(tensor)) for tensor in checkpoint.names),
        size_bytes=sum(path.stat().st_size for path in directory.iterdir()),
        fingerprint=target_fingerprint(directory) if name == "target" else None,
    )
