"""Answers of a target as it is served, with the features of all rows: `train --data DIR` reads them and runs no target.

features.json      the target, its number format, the file of prompts, and the width of every field
answers.jsonl      a line for each text: its tokens, how many of them are the prompt, whether it is held out
FIELD.int8         rows of all texts, one for each token but a text's last: `kv`, `hidden-1`, `hidden27`, ...

Values are int8 with a step for each 32: keys of a first layer have channels a hundred times as large as their others.
"""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from outrider_drafters.contracts.tap import Activations, Tap
from outrider_drafters.families.moa.network import unpack_kv
from outrider_models.training.core.interfaces import Batch, TeacherOutput, TeacherRequest
from outrider_models.training.core.rates import Length
from outrider_models.training.core.teacher import Teacher
from outrider_models.training.data.chat_file import ChatSettings, ChatSource
from outrider_models.training.data.texts import ChatTokens
from outrider_proto.errors import UsageError
from outrider_proto.files import MAX_LINES_BYTES, read_regular

LAYOUT, ANSWERS, KV, SUFFIX = "features.json", "answers.jsonl", "kv", ".int8"
_GROUP, _OCTAVE, _CODE_OF_ONE = 32, 8, 160  # steps as in outrider_proto.quantize
_STEPS = 2.0 ** ((torch.arange(256) - _CODE_OF_ONE) / _OCTAVE)


@dataclass(frozen=True, slots=True)
class AnswersLayout:
    target: str
    dtype: str
    prompts: str  # digest of their file
    fields: dict[str, int]  # values of a row


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """A text: the first `prompt` of its tokens were asked. One without tokens teaches nothing, and has no rows."""

    kind: str
    package: str
    license: str
    held_out: bool
    prompt: int
    ids: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return max(0, len(self.ids) - 1)


def encode_rows(rows: Tensor) -> NDArray[np.int8]:
    """Return rows [n, width] as they are stored: their values in steps, then the steps' codes."""
    groups = rows.float().reshape(len(rows), -1, math.gcd(_GROUP, rows.shape[-1]))
    wanted = groups.abs().amax(-1).double() / 127
    codes = ((wanted.log2() * _OCTAVE).ceil() + _CODE_OF_ONE).clamp(0, 255).to(torch.uint8)
    values = (groups / _STEPS[codes.long()].unsqueeze(-1)).round().clamp(-127, 127).to(torch.int8)
    stored: NDArray[np.int8] = torch.cat((values.flatten(-2), codes.view(torch.int8)), dim=-1).numpy()
    return stored


def decode_rows(stored: NDArray[np.int8], width: int, dtype: torch.dtype) -> Tensor:
    """Return stored rows as [n, width]."""
    whole = torch.from_numpy(stored)
    steps = _STEPS[whole[:, width:].contiguous().view(torch.uint8).long()]
    groups = whole[:, :width].reshape(len(whole), -1, math.gcd(_GROUP, width))
    return (groups * steps.unsqueeze(-1)).flatten(-2).to(dtype)


def stored_width(width: int) -> int:
    return width + width // math.gcd(_GROUP, width)


def read_answers(directory: Path) -> tuple[AnswersLayout, list[ServedAnswer], bytes]:
    """Read layout and answers, up to the last whole line, and the bytes of those. Raises UsageError."""
    layout, path = read_regular(directory / LAYOUT), directory / ANSWERS
    lines = read_regular(path, MAX_LINES_BYTES) if path.exists() else b""
    lines = lines[: lines.rfind(b"\n") + 1]
    try:
        answers = [TypeAdapter(ServedAnswer).validate_json(line) for line in lines.splitlines()]
        return TypeAdapter(AnswersLayout).validate_json(layout), answers, lines
    except ValidationError as error:
        raise UsageError(f"{directory}: no answers of `outrider-lab answer`: {error.errors()[0]['msg']}") from None


class ServedAnswers:
    """The texts of a directory and their features. Raises UsageError for another directory."""

    def __init__(self, directory: Path) -> None:
        self.layout, self._answers, lines = read_answers(directory)
        self._directory, self.held_out = directory, list[ChatTokens]()  # those that validate
        self.digest = hashlib.sha256(repr(self.layout).encode() + lines).hexdigest()
        count = sum(answer.num_rows for answer in self._answers)
        self._rows: dict[str, NDArray[np.int8]] = {}
        for field, width in self.layout.fields.items():
            try:
                shape = count, stored_width(width)
                self._rows[field] = np.memmap(directory / f"{field}{SUFFIX}", np.int8, "r", shape=shape)
            except (OSError, ValueError):
                raise UsageError(f"{directory / field}{SUFFIX}: lacks rows of {ANSWERS}") from None

    def source(self, settings: ChatSettings, length: Length) -> ChatSource:
        """Return the texts to train on, and some of those that are held out. Raises UsageError."""
        if settings.questions:
            raise UsageError("data.questions: of these texts the target has written the answers alone")
        split: dict[bool, list[ChatTokens]] = {False: [], True: []}
        place = 0
        for answer in self._answers:
            ids = np.array(answer.ids[: settings.max_length], np.int32)
            text = ChatTokens(ids, np.arange(len(ids)) >= answer.prompt, answer.kind, place=place)
            place += answer.num_rows
            split[answer.held_out] += [text] if text.num_labels else []
        if not split[False]:
            raise UsageError(f"{self._directory}: holds no answers to train on")
        dropped, self.held_out = len(self._answers) - sum(map(len, split.values())), split[True][: settings.held_out]
        return ChatSource(split[False], self.held_out, dropped, length, settings.seed, settings.limit)

    def run(self, teacher: Teacher, batch: Batch, request: TeacherRequest) -> TeacherOutput:
        """Return what the teacher would, zeros behind each text's end."""
        spans = list(zip(batch.places, (batch.labels >= 0).sum(1).tolist(), strict=True))
        # Greedy answers are the likeliest tokens.
        fields = {"likeliest": batch.labels.where(batch.loss_mask, 0)}
        for name in teacher.fields(request):
            if name not in fields:
                rows = [self._read(teacher, name, *span) for span in spans]
                fields[name] = pad_sequence(rows, batch_first=True).to(batch.tokens.device)
        return teacher.output(fields, request)

    def activations(self, teacher: Teacher, number: int, tap: Tap) -> Activations:
        """Return the activations of a held-out text, but for its last token, in the form that a tap reads."""
        text, sizes = self.held_out[number], teacher.facts.sizes
        span = text.place, len(text.ids) - 1
        keys = values = teacher.embed.new_empty(sizes.layers, sizes.kv_heads, span[1], 0)
        if tap.needs_kv:
            keys, values = unpack_kv(self._read(teacher, KV, *span).flatten(1), sizes.layers, sizes.kv_heads)
        return Activations(keys, values, {one: self._read(teacher, f"hidden{one}", *span) for one in tap.hidden_layers})

    def _read(self, teacher: Teacher, name: str, first: int, count: int) -> Tensor:
        """Return `count` rows of a field, in the shape and type that the teacher gives them."""
        layers, layer = teacher.facts.sizes.layers, -1 if name == KV else int(name.removeprefix("hidden"))
        field = f"hidden{layer + layers + 1}" if layer < -1 else name  # some families count from the end
        if field not in self._rows:
            raise UsageError(f"{self._directory}: holds no {field}, but {', '.join(self._rows)}")
        stored = np.array(self._rows[field][first : first + count])
        rows = decode_rows(stored, self.layout.fields[field], teacher.embed.dtype)
        return rows.reshape(count, layers, -1) if name == KV else rows
