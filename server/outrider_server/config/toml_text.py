"""A configuration as the text of its file, with what each key means and the defaults left as comments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from outrider_server.config.config import ServerConfig
from outrider_server.config.options import Setting, settings


def as_toml(config: ServerConfig) -> str:
    """A file that load_config() reads as `config`."""
    return "\n".join(_lines(config)) + "\n"


def _lines(config: ServerConfig) -> Iterator[str]:
    ordered = sorted(settings(), key=lambda setting: len(setting.path) > 1)  # a section runs to the next one's head
    for section, group in groupby(ordered, key=lambda setting: setting.path[:-1]):
        if section:
            yield from ("", f"[{'.'.join(section)}]")
        for setting in group:
            yield from _entry(setting, config)


def _entry(setting: Setting, config: ServerConfig) -> Iterator[str]:
    value: object = config
    for part in setting.path:
        value = getattr(value, part)
    if setting.flag.help:
        yield f"# {setting.flag.help}"
    if value is None:
        yield f"# {setting.path[-1]} ="
    else:
        yield f"{setting.path[-1]} = {_value(value)}"


def _value(value: object) -> str:
    """Of what configurations hold; TOML's strings, numbers and arrays are JSON's, but for the two below."""
    match value:
        case float() if value in (float("inf"), float("-inf")) or value != value:
            return str(value)
        case Path():
            return _value(str(value))
        case tuple():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
