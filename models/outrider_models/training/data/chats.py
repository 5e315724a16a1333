"""Reads chats from a file of JSON lines. Errors name the line.

{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}      ShareGPT's form
"""

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider_proto.errors import UsageError

ROLES = ("system", "user", "assistant", "tool")
_SHAREGPT_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class ChatTurn:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation with at least one reply.

    `source` is its file and line. `kind` is what `distill` calls it, if any, and `cut` says that its last reply was cut
    off before its end.
    """

    turns: tuple[ChatTurn, ...]
    source: str
    kind: str = ""
    cut: bool = False


def read_chats(path: Path) -> list[Chat]:
    """Read all chats of a file, compressed with xz if it is named so; empty lines are skipped.

    Raises UsageError that names file and line.
    """
    try:
        data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        # Not splitlines(): it also splits at separators such as U+2028, which JSON allows inside strings.
        lines = data.decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError, lzma.LZMAError) as error:
        raise UsageError(f"{path}: cannot be read as text ({error})") from None
    chats = [_chat(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not chats:
        raise UsageError(f"{path}: holds no chats")
    return chats


def _chat(line: str, source: str) -> Chat:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{source}: not JSON ({error})") from None
    turns = tuple(_turns(entry, source))
    if not any(turn.role == "assistant" and turn.content.strip() for turn in turns):
        raise UsageError(f"{source}: has no reply of the assistant to learn from")
    if turns[0].role == "assistant":
        raise UsageError(f"{source}: starts with a reply: need a prompt before it")
    return Chat(turns, source, str(entry.get("kind", "")), entry.get("cut") is True)


def _turns(entry: Any, source: str) -> Iterator[ChatTurn]:  # Any: whatever the line holds
    if isinstance(entry, dict) and isinstance(entry.get("messages"), list):
        turns, role_key, text_key, roles = entry["messages"], "role", "content", {role: role for role in ROLES}
    elif isinstance(entry, dict) and isinstance(entry.get("conversations"), list):
        turns, role_key, text_key, roles = entry["conversations"], "from", "value", _SHAREGPT_ROLES
    else:
        raise UsageError(f'{source}: need an object with a list "messages" or "conversations"')
    for number, turn in enumerate(turns):
        role, text = (turn.get(role_key), turn.get(text_key)) if isinstance(turn, dict) else (None, None)
        if not isinstance(role, str) or role not in roles:
            raise UsageError(f"{source}: turn {number}: {role_key}={role!r}: choose one of {', '.join(roles)}")
        if not isinstance(text, str):
            raise UsageError(f"{source}: turn {number}: {text_key} is not text")
        yield ChatTurn(roles[role], text)
