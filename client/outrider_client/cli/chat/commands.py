"""What a line that begins with a slash asks of the chat."""

from __future__ import annotations

from dataclasses import dataclass

from outrider_proto.errors import UsageError

COMMANDS: dict[str, tuple[str, str]] = {  # name: what follows it, what it does
    "help": ("", "say what can be said"),
    "stats": ("", "what the last answer and the conversation cost"),
    "mode": ("[MODE]", "say or change who writes"),
    "link": ("[cut|restore|PROFILE]", "where the link stands; with --profile: cut it, mend it, change it"),
    "private": ("FILE", "add a file to the next message as private text"),
    "privacy": ("[local|placeholder]", "say or change how private text is answered"),
    "view": ("[markdown|origins]", "answers as rendered Markdown, or colored by who wrote them"),
    "history": ("", "the conversation so far"),
    "save": ("FILE", "write the conversation to a file, private text and all"),
    "clear": ("", "begin a new conversation"),
    "quit": ("", "leave, as Ctrl-D does"),
}


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One such line."""

    name: str
    argument: str = ""


def parse_command(line: str) -> SlashCommand | None:
    """None for what is to be answered: two slashes at its beginning stand for one. Raises UsageError for what is not
    in COMMANDS."""
    if not line.startswith("/") or line.startswith("//"):
        return None
    name, _, argument = line[1:].partition(" ")
    if name not in COMMANDS:
        raise UsageError(f"/{name}: no such command; /help names them, // begins a message with a slash")
    if argument and not COMMANDS[name][0]:
        raise UsageError(f"/{name} takes nothing: {argument!r} is too much")
    return SlashCommand(name, argument.strip())
