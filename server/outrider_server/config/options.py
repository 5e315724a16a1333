"""The command line's options, made from the fields of ServerConfig and its sections: a new field is a new option.

An option that is not given is None, so that the file's value counts."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import typer

from outrider_proto.errors import OutriderError
from outrider_server.config.config import ServerConfig
from outrider_server.config.file import load_config
from outrider_server.config.schema import ConfigField, config_fields

Given: TypeAlias = dict[str, Any]  # Any: as TOML would hold it; sections are dicts


def configured(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options, --config, and the ServerConfig they make as argument `config`.

    Our own errors become one line and exit code 2.
    """
    known = {_parameter(setting).name: setting for setting in config_fields(ServerConfig)}
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "config"]
    file_option = typer.Option("--config", help="TOML file with any of these options; the command line overrides it.")
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
    parameters = [file, *(_parameter(setting) for setting in known.values()), *rest]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # read by inspect
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _given(known: Mapping[str, ConfigField], values: Mapping[str, Any]) -> Given:  # Any: as above
    """Return the options that were given, shaped like the file."""
    given: Given = {}
    for name, setting in known.items():
        value = values[name]
        # typer passes an empty list for a repeatable option that is not given.
        if value is None or value == []:
            continue
        place = given
        for part in setting.path[:-1]:
            place = place.setdefault(part, {})
        place[setting.path[-1]] = str(value.absolute()) if isinstance(value, Path) else value
    return given


def _parameter(setting: ConfigField) -> inspect.Parameter:
    """Return the option for typer; None means that it was not given."""
    plain = _plain(setting.type)
    form = f"--{setting.name}/--no-{setting.name}" if plain is bool else f"--{setting.name}"
    option = typer.Option(form, help=setting.flag.help + _shown(setting.default))
    name = "_".join(setting.path)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[plain | None, option]
    )


def _plain(kind: Any) -> Any:  # Any: a type hint
    """Return the type that typer parses; values are checked later, by one rule for file and options."""
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
            return ""  # the help text says it
