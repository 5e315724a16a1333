"""Questions from a file of JSON lines, in any of the forms that people have. Errors name the line.

{"question_id": 81, "category": "writing", "turns": ["Write ...", "Rewrite ..."]}    Spec-Bench's and MT-Bench's form
{"messages": [{"role": "user", "content": "Hi"}, ...]}                               a chat: the user's turns are asked
{"prompt": "Write ..."}    or    "Write ..."                                         plain prompts
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider_proto.errors import UsageError
from outrider_proto.files import MAX_LINES_BYTES, parse_json, read_packed

_UNNAMED = "all"


@dataclass(frozen=True, slots=True)
class UserQuestion:
    """User turns, asked one after the other; `system` precedes them."""

    id: int | str
    category: str
    turns: tuple[str, ...]
    system: str | None = None


def read_questions(path: Path) -> list[UserQuestion]:
    """Read all questions of a file; empty lines are skipped. Raises UsageError that names file and line."""
    found: dict[int | str, UserQuestion] = {}
    for number, entry in json_lines(path):
        question = _question(entry, number, f"{path}:{number}")
        if question.id in found:
            raise UsageError(f"{path}:{number}: two questions have the question_id {question.id!r}: give each its own")
        found[question.id] = question
    if not found:
        raise UsageError(f"{path}: holds no questions")
    return list(found.values())


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:  # Any: whatever the line holds
    """Yield number and value of each line of a file, perhaps an .xz, but for empty ones. Raises UsageError."""
    try:
        # Not splitlines(): it also splits at separators such as U+2028, which JSON allows inside strings. utf-8-sig:
        # some editors put a byte order mark first, which is no JSON.
        lines = read_packed(path, MAX_LINES_BYTES).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: cannot be read as text ({error})") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, parse_json(line, f"{path}:{number}")


def _question(entry: Any, number: int, source: str) -> UserQuestion:  # Any: as above
    if isinstance(entry, str):
        entry = {"prompt": entry}
    if not isinstance(entry, dict):
        raise UsageError(f"{source}: need an object or a string")
    turns, system = _turns(entry, source)
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise UsageError(f'{source}: need "turns", "messages" or "prompt" with text in every turn of the user')
    name, category = entry.get("question_id", number), entry.get("category", _UNNAMED)
    if not isinstance(name, int | str) or isinstance(name, bool) or not isinstance(category, str) or not category:
        raise UsageError(f"{source}: question_id must be a whole number or text, category text")
    # json reads half of a surrogate pair without complaint, but no tokenizer takes it.
    if any("\ud800" <= letter <= "\udfff" for text in (*turns, category, system or "", str(name)) for letter in text):
        raise UsageError(f"{source}: holds half of a surrogate pair (\\ud800 to \\udfff), which is no text")
    return UserQuestion(name, category, tuple(turns), system)


def _turns(entry: dict[str, Any], source: str) -> tuple[list[Any], str | None]:  # Any: whatever the line holds
    if isinstance(turns := entry.get("turns"), list):
        return turns, None
    if isinstance(messages := entry.get("messages"), list):
        if not all(isinstance(message, dict) for message in messages):
            raise UsageError(f"{source}: every message must be an object")
        system = [message.get("content") for message in messages if message.get("role") == "system"]
        asked = [message.get("content") for message in messages if message.get("role") == "user"]
        return asked, str(system[0]) if system else None
    return [entry.get("prompt")], None
