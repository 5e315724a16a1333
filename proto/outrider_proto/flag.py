"""What makes a field of a dataclass an option: see outrider_proto.options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """What --help says of a field, and how."""

    help: str = ""
    name: str = ""  # without dashes; replaces the field's own name, less a unit `_s`
    panel: str = ""  # heading in --help
    metavar: str = ""
    envvar: str = ""
    expert: bool = False  # not on the command line, but for --set; in the file as all others
    positional: bool = False
