"""Drafter sources as users write them: a place and options, such as `DIR,tli=1,embedding=own`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from outrider_proto.errors import UsageError

Embedding = Literal["own", "target"]
ALL_TOKENS = "all"  # draft_vocab that leaves a drafter's own file unused


@dataclass(frozen=True, slots=True)
class DrafterOptions:
    """Options for what published files leave open or get wrong; None: the file decides, else the family's rule.

    family: refuse any other family. tli: target layers that MoA runs on the client (paper, 3.2). rope_theta: RoPE's
    base. norm_output: EAGLE-3 feeds back its output after the norm. embedding: use the drafter's own or the target's.
    target_layers: tapped layers as indices of Hugging Face's hidden_states. tie_to_target: an independent drafter uses
    the target's embedding and lm_head. ngram: longest match that lookup searches for, in tokens. draft_vocab: file of
    the tokens that may be drafted, or their number in the drafter's own file (`all`: of every one it has a row for).
    copy: draft by copying where so many of the last tokens, or more, occurred before; 0: never. suffix: branches of the
    tree are what followed so many of the last tokens, or more, before; 0: none. ddtree: nodes of the best-first tree
    that a block drafter drafts in place of a chain; 0: a chain. confidence: end a draft where DSpark's confidence head
    gives less.
    """

    family: str | None = None
    tli: int | None = None
    rope_theta: float | None = None
    norm_output: bool | None = None
    embedding: Embedding | None = None
    target_layers: tuple[int, ...] | None = None
    tie_to_target: bool | None = None
    ngram: int | None = None
    draft_vocab: int | str | None = None
    copy: int | None = None
    suffix: int | None = None
    ddtree: int | None = None
    confidence: float | None = None

    @property
    def draft_vocab_file(self) -> Path | None:
        """The file that draft_vocab names, if any."""
        chosen = self.draft_vocab
        return Path(chosen).expanduser() if isinstance(chosen, str) and chosen != ALL_TOKENS else None

    def chosen(self) -> dict[str, Any]:  # Any: each option has its own type
        """Return the options that are set."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class DrafterSource:
    """A directory, file, hub name or name of a drafter without files, with options."""

    name: str
    options: DrafterOptions = field(default_factory=DrafterOptions)

    @classmethod
    def parse(cls, text: str | Path | DrafterSource) -> DrafterSource:
        """Parse `NAME[,KEY=VALUE...]`; an existing path is taken whole, commas included. Raises UsageError."""
        if isinstance(text, DrafterSource):
            return text
        name, *pairs = str(text).split(",")
        if not pairs or Path(text).expanduser().exists():
            return cls(str(text))
        return cls(name, _options(pairs))

    def with_draft_vocab(self, chosen: str | None) -> DrafterSource:
        """Return this source with a command's --draft-vocab in place of its own; None: as it is. Raises UsageError."""
        if chosen is None:
            return self
        return replace(self, options=replace(self.options, draft_vocab=_options([f"draft_vocab={chosen}"]).draft_vocab))


def source_beside(text: str, folder: Path) -> str:
    """Return a source that stands in a file in `folder`: its path as relative to it; a name stays as it is.

    What may also be a name is a path if it begins with a dot or `~`, or exists.
    """
    path, comma, options = text.partition(",")
    beside = folder / os.path.expanduser(path)
    is_path = text.startswith(("./", "../", "~/")) or (path and beside.exists())
    return f"{beside}{comma}{options}" if is_path else text


def _options(pairs: list[str]) -> DrafterOptions:
    values: dict[str, Any] = {}  # Any: each option has its own type
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if key not in _READERS or not equals:
            raise UsageError(f"drafter option {pair!r}: need KEY=VALUE with one of {', '.join(_READERS)}")
        try:
            values[key] = _READERS[key](text)
        except ValueError as error:
            raise UsageError(f"drafter option {pair!r}: need {error}") from None
    return DrafterOptions(**values)


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _embedding(text: str) -> str:
    if text not in get_args(Embedding):
        raise ValueError(" or ".join(get_args(Embedding)))
    return text


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("a whole number of at least 0")
    return int(text)


def _draft_vocab(text: str) -> int | str:
    if text.strip("0") and text.isdecimal():
        return int(text)
    if not text.strip("0"):
        raise ValueError(f"a file, a number of tokens of at least 1, or {ALL_TOKENS}")
    return text


def _probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError("a number from 0 to 1")
    return value


def _base(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError("a number above 0")
    return value


def _layers(text: str) -> tuple[int, ...]:
    if not all(part.isdecimal() for part in text.split("-")):
        raise ValueError("whole numbers such as 2-16-29")
    return tuple(int(part) for part in text.split("-"))


_READERS: Mapping[str, Callable[[str], object]] = {  # each raises ValueError with what it needs
    "family": str,
    "tli": _count,
    "rope_theta": _base,
    "norm_output": _switch,
    "embedding": _embedding,
    "target_layers": _layers,
    "tie_to_target": _switch,
    "ngram": _count,
    "draft_vocab": _draft_vocab,
    "copy": _count,
    "suffix": _count,
    "ddtree": _count,
    "confidence": _probability,
}
