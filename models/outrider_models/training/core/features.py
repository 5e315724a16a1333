"""The target's outputs for training, made once and kept on disk for all passes, runs and families.

DIR/TARGET/ab/abcd....FIELD.safetensors       a file for each text and field, named by the text's tokens

A file is written whole or not at all, so several runs may share a directory, and an interrupted one loses nothing.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider_drafters.checkpoints.fingerprint import tensors_fingerprint
from outrider_drafters.readers.checkpoint import WRITE_ERRORS
from outrider_models.training.core.interfaces import Batch, TeacherOutput, TeacherRequest
from outrider_models.training.core.teacher import Teacher
from outrider_proto.errors import OutriderError
from outrider_proto.files import atomic_path

_DIGEST_BYTES = 16
_HASHED_VALUES = 64  # of each of the target's tensors
_KEY = "rows"


class FeatureStore:
    """The target's outputs for texts: read from disk where they are, otherwise computed and written."""

    def __init__(self, teacher: Teacher, directory: Path, max_bytes: int) -> None:
        self._teacher, self._directory = teacher, directory / _name(teacher)
        self._bytes_left = max_bytes - sum(path.stat().st_size for path in directory.glob("**/*.safetensors"))

    def run(self, batch: Batch, request: TeacherRequest) -> TeacherOutput:
        """Return what the teacher does, zeros after each row's last trained position. Raises OutriderError."""
        names = self._teacher.fields(request)
        lengths = [int(mask.nonzero().max()) + 1 if mask.any() else 0 for mask in batch.loss_mask.cpu()]
        texts = [self._text(batch, row, length) for row, length in enumerate(lengths)]
        rows = [_read(text, names) for text in texts]
        if missing := [number for number, row in enumerate(rows) if row is None]:
            made = self._teacher.compute(batch.tokens[missing], request, batch.loss_mask[missing])
            for place, number in enumerate(missing):
                rows[number] = {name: made[name][place, : lengths[number]] for name in names}
                self._write(texts[number], rows[number] or {})
        length, device = batch.tokens.shape[1], batch.tokens.device
        fields = {name: _padded([row[name] for row in rows if row is not None], length, device) for name in names}
        return self._teacher.output(fields, request)

    def _text(self, batch: Batch, row: int, length: int) -> Path:
        """Return the path of a text's files, without their fields."""
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        # The mask, too: the likeliest tokens are known where it is true only.
        for part in (batch.tokens, batch.loss_mask):
            digest.update(part[row, :length].cpu().numpy().tobytes())
        return self._directory / digest.hexdigest()[:2] / digest.hexdigest()

    def _write(self, text: Path, fields: Mapping[str, Tensor]) -> None:
        for name, field in fields.items():
            path = _path(text, name)
            if self._bytes_left < field.nbytes or path.exists():
                continue
            self._bytes_left -= field.nbytes
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(path) as partial:
                    save_file({_KEY: field.cpu().contiguous()}, partial)
            except WRITE_ERRORS as error:
                raise OutriderError(
                    f"{path.parent}: features cannot be written ({error}): free some space, choose another "
                    "machine.features, or set machine.features=no"
                ) from None


def _read(text: Path, names: Sequence[str]) -> dict[str, Tensor] | None:
    """Read a text's fields; None unless all are there and whole."""
    try:
        return {name: load_file(_path(text, name))[_KEY] for name in names}
    except (OSError, SafetensorError):
        return None


def _padded(rows: Sequence[Tensor], length: int, device: torch.device) -> Tensor:
    """Stack rows [n, ...] to [B, length, ...]."""
    return torch.stack([torch.cat((row, row.new_zeros(length - len(row), *row.shape[1:]))) for row in rows]).to(device)


def _path(text: Path, field: str) -> Path:
    return text.with_name(f"{text.name}.{field}.safetensors")


def _name(teacher: Teacher) -> str:
    """Return the name of the target's directory: a digest of some values of all its tensors, and the number format."""
    # Not the fingerprint of what clients borrow: fine-tuned layers between the same embedding and head change features.
    tensors = {name: tensor.flatten()[:: -(-tensor.numel() // _HASHED_VALUES)]
               for name, tensor in teacher.model.state_dict().items()}  # fmt: skip
    return f"{tensors_fingerprint(tensors)}-{str(teacher.embed.dtype).removeprefix('torch.')}"
