"""Fields of a configuration: how the command line describes each one, and where it stands in the TOML file.

`Annotated[int, Flag("What it does.")]` makes a field an option and a key at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

FORBID_EXTRA: Final[Any] = {"extra": "forbid"}  # Any: pydantic's ConfigDict, which start-up need not import


@dataclass(frozen=True, slots=True)
class Flag:
    """`help` is what --help says. `name`, without dashes, replaces the field's own (less a unit `_s`)."""

    help: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class ConfigField:
    """One field: its place in the file, its type, and its name on the command line."""

    path: tuple[str, ...]
    type: Any  # Any: typing has no type for what a type hint may be
    default: Any = field(repr=False)  # Any: of the field's type; MISSING where there is none
    flag: Flag

    @property
    def name(self) -> str:
        """The option's name, without dashes."""
        return self.flag.name or self.path[-1].removesuffix("_s").replace("_", "-")


def config_fields(of: type, section: tuple[str, ...] = ()) -> Iterator[ConfigField]:
    """Every field of a configuration class and of its sections."""
    hints = get_type_hints(of, include_extras=True)
    for each in fields(of):
        kind, flag = _unwrapped(hints[each.name])
        if is_dataclass(kind):
            yield from config_fields(kind, (*section, each.name))  # type: ignore[arg-type] # a class, no instance
        else:
            yield ConfigField((*section, each.name), kind, each.default, flag)


def _unwrapped(hint: Any) -> tuple[Any, Flag]:  # Any: a type hint
    """The type and the Flag of an Annotated."""
    if get_origin(hint) is not Annotated:
        return hint, Flag()
    kind, *extras = get_args(hint)
    return kind, next((extra for extra in extras if isinstance(extra, Flag)), Flag())
