"""Options declared as fields of a dataclass: on the command line, behind --set, and in a file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from outrider_proto.errors import LinkError, UsageError
from outrider_proto.options.command import Program, with_options
from outrider_proto.options.fields import Flag, options_of
from outrider_proto.options.values import as_toml, build, load_table, parse_settings, read_toml


@dataclass(frozen=True, slots=True)
class Limits:
    max_nodes: Annotated[int, Flag("Nodes.")] = 64
    stall_s: Annotated[float, Flag("Patience.", expert=True)] = 60.0

    def __post_init__(self) -> None:
        if self.max_nodes < 1:
            raise UsageError(f"max_nodes={self.max_nodes}: need at least 1")


@dataclass(frozen=True, slots=True)
class Config:
    target: Annotated[str, Flag("Target.")] = "there"
    drafters: Annotated[tuple[str, ...], Flag("Drafter.", name="drafter")] = ()
    order: Annotated[Literal["fair", "plain"], Flag("Order.", expert=True)] = "fair"
    cache: Annotated[Path | None, Flag("Folder.")] = None
    is_on: Annotated[bool, Flag("Switch.", name="on")] = True
    sizes: Annotated[tuple[int, ...], Flag("Sizes.", expert=True)] = (1, 2)
    limits: Limits = field(default_factory=Limits)


def _load(file: Path | None, given: dict) -> Config:
    return build(Config, given) if file is None else load_table(Config, file, read_toml(file), given)


def _run(*arguments: str):
    app, made = typer.Typer(cls=Program), []

    @app.command()
    @with_options(Config, _load)
    def show(config: Config, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        made.append((config, loud))

    @app.command()
    def cut() -> None:
        raise LinkError("gone")

    result = CliRunner().invoke(app, list(arguments), prog_name="prog")
    return result, made[0] if made else None


def test_command_line_file_and_set_make_one_value(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('target = "file"\n[limits]\nmax_nodes = 7\nstall_s = 3\n')
    arguments = ["--config", str(file), "--drafter", "a", "--drafter", "b", "--cache", "c", "--no-on", "--loud"]
    settings = ["--set", "stall=2", "--set", "order=plain", "--set", "sizes=[3]", "--set", "limits.max_nodes=9"]
    result, made = _run("show", *arguments, *settings)
    assert result.exit_code == 0, result.output
    limits = Limits(max_nodes=9, stall_s=2.0)
    assert made == (Config("file", ("a", "b"), "plain", Path.cwd() / "c", False, (3,), limits), True)


def test_help_shows_what_is_no_experts_and_set_lists_the_rest():
    shown = _run("show", "--help")[0].output
    assert "--max-nodes" in shown
    assert "--stall" not in shown
    assert "--order" not in shown
    listed = _run("show", "--set", "list")[0].output
    assert listed.splitlines() == [
        "order=fair|plain: Order. Default: fair.",
        "sizes: Sizes.",
        "stall: Patience. Default: 60.0.",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "stal=2"), "stal: no such option; did you mean stall?"),
        (("--set", "stall"), "--set stall: need NAME=VALUE"),
        (("--set", "stall=soon"), '[limits] stall_s="soon": input should be a valid number'),
        (("--set", "order=last"), "order=\"last\": input should be 'fair' or 'plain'"),
        (("--max-nodes", "0"), "[limits] max_nodes=0: need at least 1"),
    ],
)
def test_a_mistake_is_one_line_with_the_remedy(arguments, message):
    result, _ = _run("show", *arguments)
    assert (result.exit_code, result.stderr) == (2, f"prog: {message}\n")


def test_an_option_that_set_alone_takes_is_told_how():
    result, _ = _run("show", "--stall", "2")
    assert (result.exit_code, "--set stall=VALUE" in result.stderr) == (2, True)


def test_each_kind_of_error_has_its_exit_code():
    result, _ = _run("cut")
    assert (result.exit_code, result.stderr) == (4, "prog: gone\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("targte = 'a'", "targte: no such key; did you mean target?"),
        ("[limits]\nmax_node = 1", "[limits] max_node: no such key; did you mean max_nodes?"),
        ("limits = 3", "limits: need a section, [limits]"),
        ("is_on = 1", "is_on=1: input should be a valid boolean"),
        ("is_on = ", "cannot be read as TOML (Invalid value"),
    ],
)
def test_a_mistake_in_a_file_names_file_key_and_remedy(tmp_path, text, message):
    file = tmp_path / "a.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        _load(file, {})
    assert str(caught.value).startswith(f"{file}: {message}")


def test_what_is_given_wrongly_is_not_blamed_on_the_file(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("target = 'a'")
    with pytest.raises(UsageError, match=r"^\[limits\] max_nodes=0: need at least 1$"):
        _load(file, {"limits": {"max_nodes": 0}})


def test_what_is_printed_is_read_as_the_same(tmp_path):
    config = Config('a"b\\c é\x7f', ("x",), "plain", Path("/tmp/é"), False, (), Limits(stall_s=float("inf")))
    file = tmp_path / "a.toml"
    file.write_text(as_toml(config), encoding="utf-8")
    assert _load(file, {}) == config


def test_settings_take_every_spelling_of_a_name():
    options = list(options_of(Config))
    for name in ("max-nodes", "max_nodes", "limits.max_nodes"):
        assert parse_settings(options, [f"{name}=5"]) == {"limits": {"max_nodes": 5}}
