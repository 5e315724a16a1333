"""The command line's options, read off the fields of ServerConfig and its sections: a new field is a new option. None
stands for "not given", so that the file's value holds."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import typer

from outrider_proto.errors import OutriderError
from outrider_server.config.config import ServerConfig
from outrider_server.config.file import load_config
from outrider_server.config.flag import Flag

Given: TypeAlias = dict[str, Any]  # Any: as TOML would hold it; sections are dicts


@dataclass(frozen=True, slots=True)
class Setting:
    """One field: where it lies in the file, what type it has, and how the command line calls it."""

    path: tuple[str, ...]
    type: Any  # Any: typing has no type for what a type hint may be
    default: Any = field(repr=False)  # Any: of the field's type; MISSING where there is none
    flag: Flag

    @property
    def name(self) -> str:
        """Without dashes."""
        return self.flag.name or self.path[-1].removesuffix("_s").replace("_", "-")

    @property
    def parameter(self) -> inspect.Parameter:
        """As typer wants it: absent means None."""
        plain = _plain(self.type)
        form = f"--{self.name}/--no-{self.name}" if plain is bool else f"--{self.name}"
        option = typer.Option(form, help=self.flag.help + _shown(self.default))
        kind = inspect.Parameter.KEYWORD_ONLY
        name = "_".join(self.path)
        return inspect.Parameter(name, kind, default=None, annotation=Annotated[plain | None, option])


def settings(of: type = ServerConfig, section: tuple[str, ...] = ()) -> Iterator[Setting]:
    """Every field of a configuration and of its sections."""
    hints = get_type_hints(of, include_extras=True)
    for each in fields(of):
        kind, flag = _unwrapped(hints[each.name])
        if is_dataclass(kind):
            yield from settings(kind, (*section, each.name))  # type: ignore[arg-type] # a class, no instance
        else:
            yield Setting((*section, each.name), kind, each.default, flag)


def configured(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options and --config, and the ServerConfig they make as its argument `config`. Whatever it
    raises of ours is one line and exit code 2."""
    known = {setting.parameter.name: setting for setting in settings()}
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "config"]
    file_option = typer.Option("--config", help="TOML file with any of these; options override it.")
    file = inspect.Parameter(
        "config_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[Path | None, file_option]
    )

    @wraps(command)
    def wrapper(**values: Any) -> None:  # Any: each option has its own type
        try:
            path = values.pop("config_file")
            given = _given(known, values)
            command(config=load_config(path, given), **{p.name: values[p.name] for p in own})
        except OutriderError as error:
            typer.echo(f"outrider-server: {error}", err=True)
            raise SystemExit(2) from error

    rest = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    parameters = [file, *(setting.parameter for setting in known.values()), *rest]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # read by inspect
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _given(known: Mapping[str, Setting], values: Mapping[str, Any]) -> Given:  # Any: as above
    """What was said on the command line, shaped like the file."""
    given: Given = {}
    for name, setting in known.items():
        value = values[name]
        if value is None or value == []:
            continue
        place = given
        for part in setting.path[:-1]:
            place = place.setdefault(part, {})
        place[setting.path[-1]] = str(value.absolute()) if isinstance(value, Path) else value
    return given


def _unwrapped(hint: Any) -> tuple[Any, Flag]:  # Any: a type hint
    """The type and the Flag of an Annotated."""
    if get_origin(hint) is not Annotated:
        return hint, Flag()
    kind, *extras = get_args(hint)
    return kind, next((extra for extra in extras if isinstance(extra, Flag)), Flag())


def _plain(kind: Any) -> Any:  # Any: a type hint
    """What typer reads it as: its values are checked later, by one rule for file and options."""
    if get_origin(kind) in (Union, types.UnionType):
        members = [member for member in get_args(kind) if member is not type(None)]
        return str if str in members else _plain(members[0])
    if get_origin(kind) is Literal:
        return str
    if get_origin(kind) is tuple:
        return list[str]
    return kind


def _shown(default: Any) -> str:  # Any: of the field's type
    match default:
        case bool():
            return f" Default: {'on' if default else 'off'}."
        case int() | float() | str():
            return f" Default: {default}."
        case _:
            return ""  # the help says it, where there is one
