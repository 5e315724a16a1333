"""Drafter sources as users write them: a place and options, such as `DIR,tli=1,embedding=own`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION, DrafterOptions
from outrider_proto.errors import UsageError


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
        parts = [pair.partition("=") for pair in pairs]
        if wrong := [name for name, equals, _ in parts if not (equals and name.isidentifier())]:
            raise UsageError(f"drafter option {wrong[0]!r}: need KEY=VALUE")
        return cls(name, DrafterOptions(**{name: text for name, _, text in parts}))

    def with_draft_vocab(self, chosen: str | None) -> DrafterSource:
        """Return this source with a command's draft-vocab in place of its own; None: as it is. Raises UsageError."""
        if chosen is None:
            return self
        options = self.options.but(draft_vocab=chosen)
        options.get(DRAFT_VOCAB_OPTION)
        return replace(self, options=options)


def source_beside(text: str, folder: Path) -> str:
    """Return a source that stands in a file in `folder`: a path, which has a dot or ~ first or exists, from there."""
    path, comma, options = text.partition(",")
    beside = folder / os.path.expanduser(path)
    is_path = text.startswith(("./", "../", "~/")) or (path and beside.exists())
    return f"{beside}{comma}{options}" if is_path else text
