"""Commands that the documentation and the Makefile tell to run: all of them exist, with the options given there."""

import re
import shlex
from functools import cache
from importlib import import_module
from itertools import pairwise, takewhile
from pathlib import PurePath

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from .structure import ROOT

APPS = {
    "outrider": "outrider_client.cli.app",
    **{f"outrider-{room}": f"outrider_{room}.cli.app" for room in ("server", "netsim", "models", "bench", "lab")},
}
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "examples/README.md",
    "models/data/smollm2/README.md",
    *(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")),
)
SHELL = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
ENDS = ("|", "&&", ";", "&", ">", "<", "--")


def commands(text):
    """Yield the words of each of our commands, one that runs behind another's `--` included."""
    for line in text.replace("\\\n", " ").splitlines():
        if "outrider" not in line:
            continue
        words = shlex.split(line, comments=True)
        starts = [place for place, word in enumerate(words) if PurePath(word).name in APPS]
        for start, end in pairwise([*starts, len(words)]):
            yield [PurePath(words[start]).name, *takewhile(lambda word: word not in ENDS, words[start + 1 : end])]


def unknown_words(name, *words):
    """Return the subcommand or the options that the command `name` does not have."""
    command = get_command(import_module(APPS[name]).app)
    left, place = list(words), (name,)
    while isinstance(command, TyperGroup) and left and left[0] in command.commands:
        place = (*place, left[0])
        command = command.commands[left.pop(0)]
    if isinstance(command, TyperGroup) and left and not left[0].startswith("-"):
        return left[:1]
    options = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
    unknown = []
    rest = iter(left)
    for word in rest:
        name, _, value = word.partition("=")
        if name.startswith("-") and name not in ("-", "--help", *options):
            unknown.append(name)
        elif name in options and not value and not getattr(options[name], "is_flag", True):
            setting = next(rest, "").partition("=")[0]  # its value
            if name == "--set" and "." not in setting and setting.replace("_", "-") not in settable(place):
                unknown.append(f"--set {setting}")
    return unknown


@cache
def settable(place):
    """The names that --set takes; settings of a training, with a dot, are told by no list."""
    name, *path = place
    listed = CliRunner().invoke(import_module(APPS[name]).app, [*path, "--set", "list"]).output
    return set(re.findall(r"^([\w-]+)[:=]", listed, re.MULTILINE))


@pytest.mark.parametrize("page", [*PAGES, "Makefile"])
def test_every_command_exists_with_its_options(page):
    text = (ROOT / page).read_text()
    shell = text if page == "Makefile" else "\n".join(SHELL.findall(text))
    found = {" ".join(command): unknown_words(*command) for command in commands(shell)}
    assert {command: unknown for command, unknown in found.items() if unknown} == {}


def test_a_command_that_is_gone_is_found():
    (first, second) = commands(
        "outrider-netsim run --profile x -- .venv/bin/outrider-bench recover --json out.json  # --x"
    )
    assert unknown_words(*first) == []
    assert unknown_words(*second) == ["recover"]
    assert unknown_words("outrider-bench", "network", "--csv", "--no", "--records", "FILE", "--plot=x") == ["--records"]
    assert unknown_words("outrider-bench", "exact", "--set", "prompts=2", "--set", "promps=2") == ["--set promps"]
