"""The chat's slash commands and their parser."""

from __future__ import annotations

from dataclasses import dataclass

from outrider_proto.errors import UsageError

COMMANDS: dict[str, tuple[str, str]] = {  # name: its argument, what it does
    "help": ("", "list the commands"),
    "system": ("[TEXT|-]", "show or change the system message, which tells the model how to answer; - removes it"),
    "set": ("[NAME VALUE]", "show or change temperature, top-k, top-p, seed and max-tokens of the answers"),
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


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A line that names one of COMMANDS."""

    name: str
    argument: str = ""


def parse_command(line: str) -> SlashCommand | None:
    """Parse a line; None for a message, which `//` lets begin with a slash.

    Raises UsageError for a command that is not in COMMANDS.
    """
    if not line.startswith("/") or line.startswith("//"):
        return None
    name, _, argument = line[1:].partition(" ")
    name = _ALIASES.get(name, name)
    if name not in COMMANDS:
        raise UsageError(f"/{name}: no such command; /help lists them, // begins a message with a slash")
    if argument and not COMMANDS[name][0]:
        raise UsageError(f"/{name} takes nothing after it, but got {argument!r}")
    return SlashCommand(name, argument.strip())
