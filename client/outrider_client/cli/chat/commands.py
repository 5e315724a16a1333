"""The chat's slash commands, their parser, and the settings of answers that they change."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, cast, get_args

from outrider_client.core.config import UNLIMITED, ClientConfig, Mode, Privacy
from outrider_proto.errors import UsageError
from outrider_proto.frames import Sampling
from outrider_proto.options.fields import nearest, options_of

COMMANDS: dict[str, tuple[str, str]] = {  # name: its argument, what it does
    "help": ("", "list the commands"),
    "system": ("[TEXT|-]", "show or change the system message, which tells the model how to answer; - removes it"),
    "set": ("[NAME VALUE]", "show or change numbers of the answers, such as temperature and max-tokens"),
    "model": ("", "show the models here and on the server"),
    "stats": ("", "show what the last answer and all together cost"),
    "mode": ("[MODE]", "show or change how text is generated"),
    "link": ("[cut|restore|PROFILE]", "show the link; with --profile: cut, restore or change it"),
    "private": ("FILE", "add a file to the next message as private text"),
    "privacy": ("[local|placeholder]", "show or change how private text is kept from the server"),
    "view": ("[markdown|origins]", "show answers as rendered Markdown, or colored by who wrote them"),
    "history": ("", "show the conversation so far"),
    "save": ("FILE[!]", "write the conversation to a new file, private text and all; ! replaces an old one"),
    "load": ("[FILE.json]", "go on with the last chat, or one that /save wrote to a name in .json"),
    "retry": ("", "ask the last question again, if it failed or its answer is not to be kept"),
    "undo": ("", "drop the last question and its answer"),
    "clear": ("", "start a new conversation, with the same system message"),
    "quit": ("", "leave, as Ctrl-D does"),
    "bye": ("", "leave, too"),
}
LEAVING = ("quit", "bye")
_ALIASES = {"?": "help"}

View = Literal["markdown", "origins"]
_LIMIT = "max_new_tokens"
_CHOICES: dict[str, tuple[str, ...]] = {"mode": get_args(Mode), "privacy": get_args(Privacy), "view": get_args(View)}
_NUMBERS: dict[str, tuple[tuple[str, ...], type[int] | type[float]]] = {  # name: place in ClientConfig, type
    **{each.name: (each.path, each.type) for each in options_of(Sampling, ("sampling",)) if each.type in (int, float)},
    "max-tokens": ((_LIMIT,), int),
}
_ALL = "all"  # of max-tokens: as many as the context holds


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A line that names one of COMMANDS."""

    name: str
    argument: str = ""


def parse_command(line: str) -> SlashCommand | None:
    """Parse a line; None for a message, which `//` lets begin with a slash. Raises UsageError for an unknown one."""
    if not line.startswith("/") or line.startswith("//"):
        return None
    name, _, argument = line[1:].partition(" ")
    name = _ALIASES.get(name, name)
    if name not in COMMANDS:
        raise UsageError(f"/{name}: no such command; {nearest(name, COMMANDS)}; // begins a message with a slash")
    if argument and not COMMANDS[name][0]:
        raise UsageError(f"/{name} takes nothing after it, but got {argument!r}")
    return SlashCommand(name, argument.strip())


class AnswerSettings:
    """The settings of the next answers: how they are written, how long they get, and how they look."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.view: View = "markdown"

    @property
    def overrides(self) -> dict[str, Any]:  # Any: as in ClientConfig.for_answer
        """What to pass to Client.generate."""
        return {name: getattr(self.config, name) for name in ("mode", "privacy", "sampling", _LIMIT)}

    def choose(self, name: str, argument: str) -> str:
        """Choose by one of the commands /mode, /privacy, /view; return what to print. Raises UsageError."""
        choices = _CHOICES[name]
        if not argument:
            value = self.view if name == "view" else getattr(self.config, name)
            return f"{name} {value}; choose from: {', '.join(choices)}"
        if argument not in choices:
            raise UsageError(f"/{name} {argument}: choose one of {', '.join(choices)}")
        if name == "view":
            self.view = cast(View, argument)
        else:
            self.config = self.config.for_answer(**{name: argument})
        return ""

    def set_number(self, argument: str) -> str:
        """Change a number by /set NAME VALUE; return what to print. Raises UsageError."""
        if not argument:
            return ", ".join(f"{name} {self._shown(path)}" for name, (path, _) in _NUMBERS.items())
        name, _, value = argument.removeprefix("parameter ").partition(" ")  # as Ollama has it
        name = name.replace("_", "-")
        if name not in _NUMBERS:
            raise UsageError(f"/set {name}: {nearest(name, _NUMBERS)}")
        path, parse = _NUMBERS[name]
        try:
            number = UNLIMITED if (path, value) == ((_LIMIT,), _ALL) else parse(value)
        except ValueError:
            raise UsageError(f"/set {argument}: need a number, as in /set {name} 1") from None
        self.config = self.config.for_answer(**{path[-1]: number})
        return ""

    def _shown(self, path: tuple[str, ...]) -> str:
        number = attrgetter(".".join(path))(self.config)
        return _ALL if (path, number) == ((_LIMIT,), UNLIMITED) else f"{number:g}"
