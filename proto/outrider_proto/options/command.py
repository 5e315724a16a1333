"""Options on the command line: the parameters that typer reads, and what was given of them.

An option that is not given is None, so that the file's value counts, or the field's own default.
"""

from __future__ import annotations

import inspect
import logging
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from typer.core import TyperGroup

from outrider_proto.errors import LinkError, OutriderError, Refusal, UsageError
from outrider_proto.options.fields import Option, options_of
from outrider_proto.options.values import Table, build, merged, parse_settings, place
from outrider_proto.terminal.text import PrintableRecord, print_line

SETTINGS = "settings"
_LIST = "list"  # --set list
_Config = TypeVar("_Config")


class Commands(TyperGroup):
    """Commands that tell how an option is given which --set alone takes (`typer.Typer(cls=Commands)`)."""

    def invoke(self, ctx: Any) -> Any:  # Any: click's Context, whose home typer moves; what a command returns
        logging.setLogRecordFactory(PrintableRecord)
        try:
            return super().invoke(ctx)
        except Exception as error:
            name = (getattr(error, "option_name", None) or "").removeprefix("--")  # click's error of an unknown option
            if name in getattr(getattr(error, "ctx", ctx).command.callback, "experts", ()):
                error.possibilities = [f"--set {name}=VALUE"]  # type: ignore[attr-defined]
            raise


class Program(Commands):
    """A console command (`typer.Typer(cls=Program)`): every deliberate error is one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:  # Any: as above
        try:
            return super().invoke(ctx)
        except OutriderError as error:
            print_line(f"{ctx.find_root().info_name}: {error}", err=True)
            raise typer.Exit(exit_code(error)) from error


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"outrider {version('outrider')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
]


def exit_code(error: OutriderError) -> int:
    """Return 2 for the caller's mistake, 3 for a refusal, 4 for the link's fault, 1 for anything else."""
    return next((code for kind, code in ((UsageError, 2), (Refusal, 3), (LinkError, 4)) if isinstance(error, kind)), 1)


def with_options(
    kind: type[_Config],
    load: Callable[[Path | None, Table], _Config] | None = None,
    shown: Callable[[Option], bool] = lambda option: not option.flag.expert,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a dataclass; its first parameter gets the value that they make.

    `load`: makes it from a file, which --config then names, and from what was given. Raises UsageError. `shown`: which
    options this command has on its command line; --set takes all others.
    """
    options = [replace(each, flag=replace(each.flag, expert=not shown(each))) for each in options_of(kind)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        first, *own = inspect.signature(command, eval_str=True).parameters.values()

        @wraps(command)
        def wrapper(**values: Any) -> None:  # Any: each option has its own type
            table = given(options, values)
            config = build(kind, table) if load is None else load(values["config_file"], table)
            command(**{first.name: config}, **{each.name: values[each.name] for each in own})

        shared = parameters(options, is_negatable=load is not None)
        if load is not None:
            shared = [_FILE, *shared]
        rest = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        set_signature(wrapper, [*shared, *rest], options)
        return wrapper

    return decorate


def set_signature(command: Callable[..., None], shown: list[inspect.Parameter], options: Iterable[Option]) -> None:
    """Have typer read these parameters of a command, which has `options`."""
    command.experts = {each.name for each in options if each.flag.expert}  # type: ignore[attr-defined] # for Commands
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined] # read by inspect
    command.__annotations__ = {each.name: each.annotation for each in shown}


def parameters(options: Iterable[Option], *, is_negatable: bool = True) -> list[inspect.Parameter]:
    """Return the parameters of the options on the command line, and --set for all.

    `is_negatable`: a switch that is off has --no-NAME all the same, since a file may turn it on.
    """
    options = list(options)
    shown = [_parameter(option, is_negatable) for option in options if not option.flag.expert]
    return [*shown, _SETTINGS] if any(option.flag.expert for option in options) else shown


def given(options: Iterable[Option], values: Mapping[str, Any]) -> Table:  # Any: each option has its own type
    """Return the options that were given, shaped like the file. Raises UsageError for a bad --set."""
    options, table = list(options), Table()
    pairs = values.get(SETTINGS) or []
    if _LIST in pairs:
        list_settings(options)
        raise typer.Exit
    for option in options:
        value = values.get(option.key)
        # typer passes an empty list for a repeatable option that is not given.
        if value is not None and value != []:
            place(table, option.path, _beside(value) if isinstance(value, Path) else value)
    return merged(table, parse_settings(options, pairs))


def _beside(path: Path) -> str:
    """Return a path that does not depend on the working directory; - stays, which is standard output."""
    return str(path if str(path) == "-" else path.absolute())


def list_settings(options: Iterable[Option]) -> None:
    """Print what --set takes and the command line does not."""
    for option in options:
        if option.flag.expert:
            name = "=".join((option.name, *filter(None, ["|".join(_choices(option.type))])))
            typer.echo(f"{name}: {option.flag.help}{_shown(option.default)}")


def _keyword(name: str, kind: Any, option: Any) -> inspect.Parameter:  # Any: a type hint; typer's OptionInfo
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


_SETTINGS = _keyword(
    SETTINGS,
    list[str],
    typer.Option(
        "--set", metavar="NAME=VALUE", help=f"Set what only experts need; repeatable. --set {_LIST} tells the names."
    ),
)
_FILE = _keyword(
    "config_file",
    Path,
    typer.Option("--config", help="TOML file with any of these options; the command line overrides it."),
)


def _parameter(option: Option, is_negatable: bool) -> inspect.Parameter:
    flag, plain, choices = option.flag, _plain(option.type), _choices(option.type)
    told: dict[str, Any] = {  # Any: of typer's parameters
        "help": flag.help + _shown(option.default),
        "rich_help_panel": flag.panel or None,
        "metavar": flag.metavar or "|".join(choices) or None,
        "envvar": flag.envvar or None,
    }
    if choices:
        told["autocompletion"] = lambda: list(choices)
    if flag.positional:
        return _keyword(option.key, plain, typer.Argument(**told))
    form = f"--{option.name}"
    if plain is bool and (is_negatable or option.default is True):
        form = f"{form}/--no-{option.name}"
    return _keyword(option.key, plain, typer.Option(form, **told))


def _plain(kind: Any) -> Any:  # Any: a type hint
    """Return the type that typer parses; values are checked later, by one rule for file and options."""
    if get_origin(kind) in (Union, types.UnionType):
        members = [member for member in get_args(kind) if member is not type(None)]
        return str if str in members else _plain(members[0])
    if get_origin(kind) is Literal:
        return str
    if get_origin(kind) is tuple:
        return list[_plain(get_args(kind)[0])]  # type: ignore[misc] # a type made at run time
    return kind


def _choices(kind: Any) -> tuple[str, ...]:  # Any: a type hint
    """Return the closed choices of a type; none for any other."""
    if get_origin(kind) in (Union, types.UnionType):
        return next((each for member in get_args(kind) if (each := _choices(member))), ())
    return tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else ()


def _shown(default: Any) -> str:  # Any: of the field's type
    match default:
        case bool():
            return f" Default: {'on' if default else 'off'}."
        case int() | float() | str() if default is not MISSING and default != "":
            return f" Default: {default}."
        case _:
            return ""  # the help text says it
