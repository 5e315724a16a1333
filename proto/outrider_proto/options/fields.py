"""The declaration of an option: a field of a frozen dataclass.

    temperature: Annotated[float, Flag("Sampling temperature; 0 is greedy.", panel="Sampling")] = 0.0

makes `--temperature` (command.py) and the key `temperature` of a file (values.py). A field that is itself a dataclass
is a section: `limits.max_nodes` is `--max-nodes`, and the key `max_nodes` under `[limits]`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from outrider_proto.errors import UsageError
from outrider_proto.flag import Flag as Flag


@dataclass(frozen=True, slots=True)
class Option:
    """One field: its place in the file, its type, and what is declared of it."""

    path: tuple[str, ...]
    type: Any  # Any: typing has no type for what a type hint may be
    default: Any = field(repr=False)  # Any: of the field's type; MISSING where there is none
    flag: Flag

    @property
    def name(self) -> str:
        """The option's name, without dashes."""
        return self.flag.name or self.path[-1].removesuffix("_s").replace("_", "-")

    @property
    def key(self) -> str:
        """The name of the option's value among a command's arguments."""
        return "_".join(self.path)


def options_of(kind: type, section: tuple[str, ...] = ()) -> Iterator[Option]:
    """Every option of a dataclass and of its sections: the fields with a Flag."""
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        plain, flag = _unwrapped(hints[each.name])
        if flag is not None:
            default = each.default if each.default_factory is MISSING else each.default_factory()
            yield Option((*section, each.name), plain, default, flag)
        elif is_dataclass(plain):
            yield from options_of(plain, (*section, each.name))  # type: ignore[arg-type] # a class, no instance


def find_option(options: Iterable[Option], name: str) -> Option:
    """Return the option that is called `name`: max-nodes, max_nodes or limits.max_nodes. Raises UsageError."""
    known = list(options)
    spellings = {
        spelling.replace("-", "_"): each
        for each in known
        for spelling in (".".join(each.path), each.path[-1], each.name)
    }
    if (option := spellings.get(name.replace("-", "_"))) is not None:
        return option
    raise UsageError(f"{name}: no such option; {nearest(name.replace('_', '-'), (each.name for each in known))}")


def nearest(name: str, names: Iterable[str]) -> str:
    """Return what to say of a name that is none of `names`."""
    known = list(dict.fromkeys(names))
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"


def _unwrapped(hint: Any) -> tuple[Any, Flag | None]:  # Any: a type hint
    """Return the type and the Flag of an Annotated."""
    if get_origin(hint) is not Annotated:
        return hint, None
    kind, *extras = get_args(hint)
    return kind, next((extra for extra in extras if isinstance(extra, Flag)), None)
