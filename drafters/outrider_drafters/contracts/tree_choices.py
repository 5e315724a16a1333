"""Static draft trees: fixed paths of child ranks, as Medusa and Hydra draft them, and the sets shipped as data.

(0,) (1,) (0, 0) (0, 1) (1, 0)          the likeliest and second likeliest successor of the root, of the first
                                        node the two likeliest, of the second node the likeliest
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from outrider_proto.errors import UsageError
from outrider_proto.files import parse_json, read_regular
from outrider_proto.tree import MAX_NODES

MAX_RANK = 63
SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class TreeChoices:
    """Paths of child ranks, by length and then by rank: a path's index is its node's number. Raises UsageError."""

    paths: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", tuple(sorted(self.paths, key=lambda path: (len(path), path))))
        known = set(self.paths)
        if not 1 <= len(self.paths) <= MAX_NODES:
            raise UsageError(f"choices: {len(self.paths)} paths: need 1 to {MAX_NODES}")
        if len(known) != len(self.paths):
            raise UsageError("choices: a path is there twice")
        for path in self.paths:
            if not path or not all(0 <= rank <= MAX_RANK for rank in path):
                raise UsageError(f"choices: path {list(path)}: need one or more ranks from 0 to {MAX_RANK}")
            if len(path) > 1 and path[:-1] not in known:
                raise UsageError(f"choices: path {list(path)} without its parent {list(path[:-1])}")

    @classmethod
    def of(cls, paths: Iterable[Iterable[int]]) -> TreeChoices:
        return cls(tuple(tuple(path) for path in paths))

    @classmethod
    def load(cls, name_or_path: str | Path) -> TreeChoices:
        """Load a shipped set by name, or a JSON file with a list of paths. Raises UsageError."""
        path = Path(name_or_path)
        if path.suffix != SUFFIX:
            if str(name_or_path) not in shipped_choices():
                raise UsageError(
                    f"choices {name_or_path}: need a {SUFFIX} file or one of {', '.join(shipped_choices())}"
                )
            return cls.of(parse_json((_shipped() / f"{name_or_path}{SUFFIX}").read_text(), name_or_path)["paths"])
        return cls.of(_checked(parse_json(read_regular(path, name=f"choices {path}"), f"choices {path}"), path))

    @property
    def levels(self) -> int:
        return max(map(len, self.paths))

    def at_level(self, level: int) -> tuple[tuple[int, ...], ...]:
        """Return the paths of `level` ranks, in order."""
        return tuple(path for path in self.paths if len(path) == level)

    def fitted(self, levels: int, budget: int) -> TreeChoices | None:
        """Cut to `levels` levels and `budget` nodes; None if nothing is left."""
        # Paths are sorted by length, so cutting the list never separates a path from its parent.
        kept = [path for path in self.paths if len(path) <= levels][: max(budget, 0)]
        return TreeChoices(tuple(kept)) if kept else None


def shipped_choices() -> tuple[str, ...]:
    """Return the names of the shipped sets."""
    return tuple(sorted(file.name[: -len(SUFFIX)] for file in _shipped().iterdir() if file.name.endswith(SUFFIX)))


def _shipped() -> Any:  # Any: a Traversable, whose module moves between Python versions
    return resources.files("outrider_drafters.contracts") / "choice_sets"


def _checked(value: object, path: Path) -> list[list[int]]:
    # type(rank) is int: isinstance would let JSON's true and false through.
    if not isinstance(value, list) or not all(
        isinstance(item, list) and all(type(rank) is int for rank in item) for item in value
    ):
        raise UsageError(f"choices {path}: need a list of lists of whole numbers")
    return value
