"""Reads chats from a file of JSON lines. Errors name the line.

{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}      ShareGPT's form
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider_models.core.questions import json_lines
from outrider_proto.errors import UsageError

ROLES = ("system", "user", "assistant", "tool")
_SHAREGPT_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}


Message = dict[str, str]  # role, content


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation with at least one reply.

    `source` is its file and line, `kind` what `distill` calls it, and `cut` says that its last reply has no end.
    """

    turns: tuple[Message, ...]
    source: str
    kind: str = ""
    cut: bool = False


def read_chats(path: Path) -> list[Chat]:
    """Read all chats of a file, perhaps an .xz, but for empty lines. Raises UsageError that names file and line."""
    chats = [_chat(entry, f"{path}:{number}") for number, entry in json_lines(path)]
    if not chats:
        raise UsageError(f"{path}: holds no chats")
    return chats


def _chat(entry: Any, source: str) -> Chat:  # Any: whatever the line holds
    turns = tuple(_turns(entry, source))
    if not any(turn["role"] == "assistant" and turn["content"].strip() for turn in turns):
        raise UsageError(f"{source}: has no reply of the assistant to learn from")
    if turns[0]["role"] == "assistant":
        raise UsageError(f"{source}: starts with a reply: need a prompt before it")
    return Chat(turns, source, str(entry.get("kind", "")), entry.get("cut") is True)


def _turns(entry: Any, source: str) -> Iterator[Message]:  # Any: as above
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
        yield {"role": roles[role], "content": text}
