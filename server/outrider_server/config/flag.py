"""How a field of a configuration is spoken of on the command line: `Annotated[int, Flag("What it does.")]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

FORBID_EXTRA: Final[Any] = {"extra": "forbid"}  # Any: pydantic's ConfigDict, which start-up need not import


@dataclass(frozen=True, slots=True)
class Flag:
    """`help` is what --help says. `name` without dashes, where it is not the field's (less a unit `_s`)."""

    help: str = ""
    name: str = ""
